"""Bugs that only a run can show: what lies outside of compiled graphs, kernels, and dtypes; and what the proof says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.eval_frame import _get_cache_entries_for_region
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Partial
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.comparison.programs import Block, all_reduce, miscompiles, on_ranks, tensor_parallel
from tests.support import fake_mesh_world
from verifycompile import Verdict

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
LINES = Path(__file__).read_text().splitlines()


class Means(nn.Module):
    """A mean over samples, which data-parallel ranks may average."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def sharded(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Means()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if wrong:
        model.set_requires_gradient_sync(False)
    return model


def test_synchronisation_of_fsdp_that_is_switched_off() -> None:
    for wrong in (False, True):
        found = on_ranks(lambda mesh, wrong=wrong: sharded(mesh, wrong), (torch.randn(4, 16),), names=("dp",))
        assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(found)
    assert found.findings[0].message == (
        "`grad.blocks.0.up.weight`: the parallel program has no such tensor after backward, so that the parameter is not "
        "trained"
    )
    assert (len(found.findings), found.findings[0].followers) == (1, 11)  # of one cause
    # One call cannot tell a step of accumulation from one that trains: the proof says which of them it speaks of.
    with fake_mesh_world((2,), ("dp",)) as mesh:
        proof = verifycompile.verify(sharded(mesh, wrong=True), (torch.randn(4, 16),))
    assert proof.verdict is Verdict.VERIFIED, str(proof)
    assert any("are accumulated on each rank, not reduced" in assumption for assumption in proof.assumptions)


POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
SETTINGS: dict[str, tuple[MixedPrecisionPolicy, dict[str, float], Verdict]] = {
    "by the ranks": (MixedPrecisionPolicy(), {"blocks.0": 2.0, "blocks.1": 2.0, "": 2.0}, Verdict.VERIFIED),
    "one sums": (MixedPrecisionPolicy(), {"blocks.1": 1.0}, Verdict.REFUTED),
    "one divides by more": (MixedPrecisionPolicy(), {"blocks.1": 4.0}, Verdict.REFUTED),
    "mixed precision": (POLICY, {}, Verdict.VERIFIED),
    "mixed precision, one sums": (POLICY, {"blocks.1": 1.0}, Verdict.REFUTED),
}
"""What parameters are cast to, and by what gradients are divided in place of the number of ranks."""


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_of_fully_shard(kind: str) -> None:
    policy, factors, verdict = SETTINGS[kind]

    def build(mesh: DeviceMesh) -> nn.Module:
        torch.manual_seed(0)
        model = Means()
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        for name, factor in factors.items():
            cast("FSDPModule", model.get_submodule(name)).set_gradient_divide_factor(factor)
        return model

    found = on_ranks(build, (torch.randn(4, 16),), names=("dp",), spec=Means())
    assert found.verdict is verdict, str(found)
    assert found.epsilons[1] == torch.finfo(torch.bfloat16 if policy is POLICY else torch.float32).eps
    told = "precision: `fully_shard` computes in torch.bfloat16; the most that a result is off by is "
    assert any(note.startswith(told) for note in found.notes) is (policy is POLICY)
    if verdict is Verdict.REFUTED:
        assert found.findings[0].message.startswith("`grad.blocks.1.down.weight` differs from the spec's by ")
        assert all(str(finding.output).startswith("grad.blocks.1.") for finding in found.findings)


def drops_a_bucket(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Leaves the last bucket as it is on each rank."""
    value = bucket.buffer()
    if not bucket.is_last():
        value = all_reduce(value, group) / dist.get_world_size(group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(value)
    return done


drops_a_bucket.__annotations__.clear()  # DDP wants classes there, not their names


def data_parallel(mesh: DeviceMesh, wrong: bool) -> nn.Module:
    torch.manual_seed(0)
    # Else all gradients are one bucket in the first pass, and the buckets are made in the second one.
    several = {"find_unused_parameters": True, "bucket_cap_mb": 0.001}
    model = DistributedDataParallel(Means(), device_mesh=mesh, **several)
    if wrong:
        model.register_comm_hook(mesh.get_group(), drops_a_bucket)
    return model


def test_a_hook_of_ddp_that_drops_a_bucket() -> None:
    for wrong in (False, True):
        found = on_ranks(lambda mesh, wrong=wrong: data_parallel(mesh, wrong), (torch.randn(4, 16),), names=("dp",))
        assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(found)
    assert {item.name for item in found.tensors if item.exceeds} < {
        f"grad.{name}" for name, _ in Means().named_parameters()
    }
    # No graph has the hook: what it does has to be said, and then the proof takes the user's word for it.
    for said, verdict in (({}, Verdict.UNPROVED), ({"*": (Partial("avg"),)}, Verdict.VERIFIED)):
        with fake_mesh_world((2,), ("dp",)) as mesh:
            model = data_parallel(mesh, wrong=True)
            proof = verifycompile.verify(model, (torch.randn(4, 16),), grad_placements=said)
        assert proof.verdict is verdict, str(proof)
        if not said:
            text = "its communication hook `drops_a_bucket` may do anything with the gradients"
            assert text in proof.findings[0].message


class Between(nn.Module):
    """Something happens to a value between two blocks, which may be compiled each by itself."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        self.change(hidden)
        return self.second(hidden)


def test_a_change_in_place_between_two_graphs() -> None:
    x = torch.randn(4, 16)
    spec = Between(lambda hidden: None)
    for change, verdict in ((None, Verdict.VERIFIED), (0.5, Verdict.REFUTED)):
        with fake_mesh_world((2,), ("tp",)) as mesh:
            model = Between(lambda hidden, by=change: None if by is None else hidden.mul_(by))
            model = tensor_parallel_blocks(model, mesh)
            found = verifycompile.compare(model, (x,), spec=spec)
        assert found.verdict is verdict, str(found)
    place = found.findings[0].impl_location
    assert place is not None
    assert "hidden.mul_(by)" in LINES[place.line - 1], str(found)
    # Each of the graphs is the spec's: the gate lets both of them run.
    torch._dynamo.reset()
    with fake_mesh_world((2,), ("tp",)) as mesh:
        changed = Between(lambda hidden: hidden.mul_(0.5))
        model = tensor_parallel_blocks(changed, mesh)
        for block in (model.first, model.second):
            block.compile(backend="verify")
        assert model(x).shape == x.shape


def tensor_parallel_blocks(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in (model.first, model.second):
        holder = nn.Module()
        holder.blocks = nn.ModuleList([block])
        tensor_parallel(holder, mesh)
    return model


class Wrong(nn.Module):
    """A kernel that is said to be ``gelu``."""

    def __init__(self, kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)


class Activated(nn.Module):
    def __init__(self, kernel: Callable[[torch.Tensor], torch.Tensor] = torch.nn.functional.gelu) -> None:
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(16, 32), Wrong(kernel), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


def test_an_operator_that_was_replaced() -> None:
    x = torch.randn(4, 16)

    def replaced(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(value, approximate="tanh")

    for kernel, verdict in ((torch.nn.functional.gelu, Verdict.VERIFIED), (replaced, Verdict.REFUTED)):
        found = verifycompile.compare(Activated(kernel), (x,), spec=Activated())
        assert found.verdict is verdict, str(found)
    place = found.findings[0].impl_location
    assert place is not None
    assert place.module == "activation"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_of_the_inner_compiler(wrong: bool) -> None:
    """The proof ends at the graph that the inner compiler gets; what comes of it is run as it is compiled."""
    torch._dynamo.reset()
    inner = miscompiles if wrong else "eager"
    model = torch.compile(Activated(), backend="verify", options={"inner": inner})
    x, spec = torch.randn(4, 16), Activated()
    found = verifycompile.compare(model, (x,), spec=spec)
    assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(found)
    assert "compiled.output.0" in {item.name for item in found.tensors}
    if not wrong:
        return
    assert found.findings[0].message.startswith("compiled, `output.0` differs from the spec's by ")
    torch._dynamo.reset()
    assert model(x).shape == x.shape  # verified, and run


def on_rank_1(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
    return miscompiles(graph, example_inputs) if dist.get_rank() == 1 else graph


WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "as a whole": lambda model, compiler: torch.compile(model, backend=compiler),
    "one module": lambda model, compiler: model.second.compile(backend=compiler) or model,
    "a module inside": lambda model, compiler: model.add_module("second", torch.compile(model.second, backend=compiler))
    or model,
    "verified": lambda model, compiler: torch.compile(model, backend="verify", options={"inner": compiler}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_program_on_several_ranks_of_one_process(way: str) -> None:
    """What Dynamo compiled for one rank, before or now, it takes for no other one."""
    torch._dynamo.reset()
    method = DTensor.from_local
    for compiler, verdict in (("eager", Verdict.VERIFIED), (on_rank_1, Verdict.REFUTED)):
        with fake_mesh_world((2,), ("tp",)) as mesh:
            model = WAYS[way](tensor_parallel_blocks(Between(lambda hidden: None), mesh), compiler)
            if way == "as a whole":
                model(torch.randn(4, 16))
            entries = len(_get_cache_entries_for_region(Block.forward, -1))
            found = verifycompile.compare(model, (torch.randn(4, 16),), spec=Between(lambda hidden: None))
            assert len(_get_cache_entries_for_region(Block.forward, -1)) == entries
        assert found.verdict is verdict, str(found)
        assert "compared uncompiled, with all its modules, and then as it is compiled" in found.notes
    assert "compiled, `output.0` differs from the spec's by" in found.findings[0].message
    assert DTensor.from_local is method


def test_a_program_that_is_compiled_for_each_rank() -> None:
    """``fully_shard`` and its hooks around what is compiled."""

    def build(mesh: DeviceMesh, compiler: Any) -> Any:
        return torch.compile(sharded(mesh, wrong=False), backend=compiler)

    torch._dynamo.reset()
    for compiler, verdict in (("aot_eager", Verdict.VERIFIED), (on_rank_1, Verdict.REFUTED)):
        made = functools.partial(build, compiler=compiler)
        found = on_ranks(made, (torch.randn(4, 16),), names=("dp",), spec=Means())
        assert found.verdict is verdict, str(found)
        assert "compiled.grad.blocks.1.up.weight" in {item.name for item in found.tensors}


class Narrow(Activated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coarser = torch.bfloat16 if x.dtype is torch.float32 else torch.float8_e5m2
        return self.down(self.activation(self.up(x).to(coarser).to(x.dtype)))


def test_a_dtype_that_is_coarser_than_the_programs() -> None:
    spec, x = Activated(), torch.randn(4, 16)
    assert verifycompile.compare(Activated(), (x,), spec=spec).verdict is Verdict.VERIFIED
    found = verifycompile.compare(Narrow(), (x,), spec=spec)
    assert found.verdict is Verdict.REFUTED
    assert found.findings[0].output == "activation.input.0"
    halves = [model.bfloat16() for model in (Narrow(), Activated(), Activated())]
    assert verifycompile.compare(halves[1], (x.bfloat16(),), spec=halves[2]).verdict is Verdict.VERIFIED
    in_8_bits = verifycompile.compare(halves[0], (x.bfloat16(),), spec=halves[2])
    assert in_8_bits.verdict is Verdict.REFUTED, str(in_8_bits)
    assert in_8_bits.findings[0].output == "activation.input.0"
    # The proof takes casts for identities, and says so.
    with fake_mesh_world((2,), ("tp",)) as mesh:
        proof = verifycompile.verify(Narrow(), (x,), spec=spec, mesh=mesh)
        with_proof = verifycompile.compare(Narrow(), (x,), spec=spec, mesh=mesh, proof=proof)
    assert proof.verdict is Verdict.VERIFIED, str(proof)
    assert with_proof.verdict is Verdict.REFUTED
    assert with_proof.contradiction.startswith("the proof holds over the real numbers")
    casts = [state for state in with_proof.proof if state.text.startswith("cast treated as identity")]
    assert len(casts) == 2
    assert all(state.state == "open" and state.why.startswith("it may not hold: `grad.") for state in casts)


class Read(nn.Module):
    """Divides by a Python number that it reads from a tensor."""

    def __init__(self, group: Any = None, *, wrong: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.group, self.wrong = group, wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        total = hidden.detach().square().sum()
        if self.group is not None and not self.wrong:
            total = all_reduce(total, self.group)
        return hidden / float(total)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_number_that_is_read_from_a_partial_value(wrong: bool) -> None:
    def build(mesh: DeviceMesh) -> nn.Module:
        torch.manual_seed(0)
        model = Read(mesh.get_group(), wrong=wrong)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: all_reduce(gradient, mesh.get_group()))
        return model

    rows = {"x": (Shard(0),)}
    found = on_ranks(build, (torch.randn(4, 16),), names=("dp",), spec=Read(), in_placements=rows)
    assert found.verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED), str(found)
    if not wrong:
        return
    assert found.findings[0].output == "output.0"
    # The gate sees that a number is read between two graphs, and does not let the second one run.
    torch._dynamo.reset()
    with fake_mesh_world((2,), ("dp",)) as mesh, torch.no_grad():
        model = torch.compile(Read(mesh.get_group(), wrong=True), backend="verify", options=rows_of(mesh))
        with pytest.raises(verifycompile.RefinementError, match="is a partial sum, and goes to Python code that nothing checks"):
            model(torch.randn(2, 16))


def rows_of(mesh: DeviceMesh) -> dict[str, Any]:
    return {"mesh": mesh, "in_placements": {"x": (Shard(0),)}}


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, waits: bool) -> torch.Tensor:
        total = y.clone()
        work = dist.all_reduce(total, async_op=True)
        assert work is not None
        if waits:
            work.wait()
        return total + 1  # FORGOTTEN

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class Sliced(nn.Linear):
    """One column of the features on each rank."""

    def __init__(self, waits: bool) -> None:
        torch.manual_seed(0)
        super().__init__(2, 3, bias=False)
        self.waits = waits
        self.weight = nn.Parameter(self.weight.detach()[:, dist.get_rank() :][:, :1].clone())

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch calls it so
        return cast(torch.Tensor, _Summed.apply(super().forward(input), self.waits))


class Whole(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 3, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch calls it so
        return super().forward(input) + 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_collective_that_nobody_waits_for(waits: bool) -> None:
    placements = {"in_placements": {"input": Shard(1)}, "param_placements": {"weight": Shard(1)}}
    found = on_ranks(lambda _: Sliced(waits), (torch.randn(4, 1),), spec=Whole(), **placements)
    assert found.verdict is (Verdict.VERIFIED if waits else Verdict.REFUTED), str(found)
    if not waits:
        location = found.findings[0].impl_location
        assert location is not None, str(found)
        assert LINES[location.line - 1].endswith("# FORGOTTEN")
