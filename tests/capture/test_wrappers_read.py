"""The state of data-parallel wrappers at the time of the call decides what is promised of each gradient."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_on_fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import verifycompile
from tests.programs import mlp
from tests.programs.data_parallel import Regression, pairs
from tests.support import fake_mesh_world
from verifycompile import Report, UsageError, Verdict

Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]
FOUR = ((4,), ("dp",))
TWO_BY_TWO = ((2, 2), ("replicated", "sharded"))
OUTSIDE = "; a loss outside of it is the mean over the ranks too"
LATER = "a later step must take the mean of what was accumulated"
LATER_ALL = f"{LATER}, and a loss outside of the graph is the mean over the ranks too"


def after(wrapped: nn.Module, *changes: tuple[str, Any]) -> nn.Module:
    """``wrapped`` after calls of its methods, or with attributes set."""
    for name, value in changes:
        method = getattr(wrapped, name)
        method(*value) if callable(method) else setattr(wrapped, name, value)
    return wrapped


def ignoring(model: nn.Module) -> DistributedDataParallel:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["up.weight"])
    return DistributedDataParallel(model)


def unfrozen(model: nn.Module) -> DistributedDataParallel:
    model.up.weight.requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    model.up.weight.requires_grad_(True)
    return wrapped


def replaced(model: nn.Module) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model)
    model.up.weight = nn.Parameter(torch.randn_like(model.up.weight))
    return wrapped


def any_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    raise NotImplementedError(bucket)


# DDP looks at the annotations themselves, which are text in this file.
any_hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


@dataclasses.dataclass(frozen=True)
class Case:
    """``wrap`` makes a data-parallel model; ``said``: sentences of the report on it, among the others."""

    wrap: Wrap
    said: tuple[str, ...]
    mesh: tuple[tuple[int, ...], tuple[str, ...]] = FOUR


def mean(wrapper: str, over: str, count: int = 4) -> str:
    gathers = ", and gathers the parameters before" if wrapper == "fully_shard" else ""
    return (
        f"outside of the graph, `{wrapper}` takes the mean of the gradients of {count} parameters over {over}{gathers}"
    )


def kept(setting: str, wrapper: str, over: str, later: str = LATER_ALL) -> str:
    first = f"gradients of this step are accumulated on each rank, not reduced ({setting})"
    return f"{first}: those of 4 parameters of `{wrapper}` over {over}; {later}"


def casts(wrapper: str, what: str) -> str:
    return f"casts of `{wrapper}`, which {what}, are treated as identities"


NO_SYNC = "set_requires_gradient_sync(False)"
RIGHT = {
    "ddp": Case(
        lambda m, mesh: DistributedDataParallel(m), (mean("DistributedDataParallel", "data_parallel") + OUTSIDE,)
    ),
    "ddp, no sync": Case(
        lambda m, mesh: after(DistributedDataParallel(m, device_mesh=mesh), ("require_backward_grad_sync", False)),
        (kept("no_sync()", "DistributedDataParallel", "dp"),),
    ),
    "ddp, static graph": Case(
        lambda m, mesh: DistributedDataParallel(m, device_mesh=mesh, static_graph=True),
        (mean("DistributedDataParallel", "dp") + OUTSIDE,),
    ),
    "ddp, unused parameters": Case(
        lambda m, mesh: DistributedDataParallel(m, device_mesh=mesh, find_unused_parameters=True),
        (mean("DistributedDataParallel", "dp") + OUTSIDE,),
    ),
    "ddp, torch's hook": Case(
        lambda m, mesh: after(DistributedDataParallel(m), ("register_comm_hook", (None, default_hooks.allreduce_hook))),
        (mean("DistributedDataParallel", "data_parallel") + OUTSIDE,),
    ),
    "ddp, compressed": Case(
        lambda m, mesh: after(
            DistributedDataParallel(m), ("register_comm_hook", (None, default_hooks.fp16_compress_hook))
        ),
        (
            mean("DistributedDataParallel", "data_parallel") + OUTSIDE,
            casts("DistributedDataParallel", "reduces in torch.float16"),
        ),
    ),
    "ddp, mixed precision": Case(
        lambda m, mesh: DistributedDataParallel(
            m, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        ),
        (
            mean("DistributedDataParallel", "data_parallel") + OUTSIDE,
            casts("DistributedDataParallel", "computes in torch.bfloat16 and reduces in torch.float32"),
        ),
    ),
    "replicate": Case(lambda m, mesh: replicate(m, device_mesh=mesh), (mean("replicate", "dp") + OUTSIDE,)),
    "replicate, no sync": Case(
        lambda m, mesh: after(replicate(m, device_mesh=mesh), ("set_requires_gradient_sync", (False,))),
        (kept(NO_SYNC, "replicate", "dp"),),
    ),
    "replicate on fsdp": Case(lambda m, mesh: replicate_on_fsdp(m, mesh=mesh), (mean("replicate", "dp") + OUTSIDE,)),
    "replicate on fsdp, no sync": Case(
        lambda m, mesh: after(replicate_on_fsdp(m, mesh=mesh), ("set_requires_gradient_sync", (False,))),
        (kept(NO_SYNC, "replicate", "dp"),),
    ),
    "replicate on fsdp, no all-reduce": Case(
        lambda m, mesh: after(replicate_on_fsdp(m, mesh=mesh), ("set_requires_all_reduce", (False,))),
        (kept("set_requires_all_reduce(False)", "replicate", "dp"),),
    ),
    "fully_shard, no sync": Case(
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_requires_gradient_sync", (False,))),
        (kept(NO_SYNC, "fully_shard", "dp"), "outside of the graph, `fully_shard` gathers the parameters before"),
    ),
    "fully_shard, no all-reduce on one axis": Case(
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_requires_all_reduce", (False,))),
        (mean("fully_shard", "dp") + OUTSIDE,),
    ),
    "fully_shard, factor of its ranks": Case(
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_gradient_divide_factor", (4.0,))),
        (mean("fully_shard", "dp") + OUTSIDE,),
    ),
    "fully_shard, not the last backward": Case(
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_is_last_backward", (False,))),
        (mean("fully_shard", "dp") + OUTSIDE,),
    ),
    "fully_shard, mixed precision": Case(
        lambda m, mesh: fully_shard(
            m, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float64)
        ),
        (
            mean("fully_shard", "dp") + OUTSIDE,
            casts(
                "fully_shard", "computes in torch.bfloat16 and reduces in torch.float32 and returns in torch.float64"
            ),
        ),
    ),
    "fully_shard by columns": Case(
        lambda m, mesh: fully_shard(m, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if p.ndim > 1 else None),
        (mean("fully_shard", "dp") + OUTSIDE,),
    ),
    "hybrid": Case(
        lambda m, mesh: fully_shard(m, mesh=mesh), (mean("fully_shard", "replicated, sharded") + OUTSIDE,), TWO_BY_TWO
    ),
    "hybrid, no all-reduce": Case(
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_requires_all_reduce", (False,))),
        (
            kept("set_requires_all_reduce(False)", "fully_shard", "replicated", LATER),
            mean("fully_shard", "sharded") + OUTSIDE,
        ),
        TWO_BY_TWO,
    ),
}


def report(wrap: Wrap, mesh_of_case: tuple[tuple[int, ...], tuple[str, ...]] = FOUR, **options: Any) -> Report:
    with fake_mesh_world(*mesh_of_case) as mesh:
        return verifycompile.verify(wrap(Regression(), mesh), pairs(), **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_promised(name: str) -> None:
    case = RIGHT[name]
    found = report(case.wrap, case.mesh)
    assert found.verdict is Verdict.VERIFIED, str(found)
    of_gradients = ("outside of the graph", "gradients of this step", "casts of")
    assert [line for line in found.assumptions if line.startswith(of_gradients)] == list(case.said)


UNREDUCED: dict[str, Wrap] = {
    "ddp": lambda m, mesh: ignoring(m),
    "ddp, a parameter made later": lambda m, mesh: replaced(m),
    "replicate": lambda m, mesh: replicate(m, ignored_modules=[m.up], device_mesh=mesh),
    "replicate on fsdp": lambda m, mesh: replicate_on_fsdp(m, mesh=mesh, ignored_params={m.up.weight}),
    "fully_shard": lambda m, mesh: fully_shard(m, mesh=mesh, ignored_params={m.up.weight}),
}


@pytest.mark.parametrize("name", UNREDUCED)
def test_a_gradient_that_nobody_reduces(name: str) -> None:
    found = report(UNREDUCED[name])
    assert found.verdict is Verdict.REFUTED
    over = "data_parallel" if name.startswith("ddp") else "dp"
    assert found.findings[0].code == "VC101"
    assert found.findings[0].message == (
        f"`grad.up.weight` is returned as each rank's own over {over}; it must be the mean"
    )
    said = report(UNREDUCED[name], grad_placements={"up.*": (Partial("avg"),)})
    assert said.verdict is Verdict.VERIFIED, str(said)


UNKNOWN: dict[str, tuple[Wrap, str]] = {
    "ddp, hook": (
        lambda m, mesh: after(DistributedDataParallel(m), ("register_comm_hook", (None, any_hook))),
        (
            "what `DistributedDataParallel` makes of the gradients is not known: its communication hook `any_hook` may do "
            "anything with the gradients."
        ),
    ),
    "ddp of a part, hook of all": (
        lambda m, mesh: after(
            DistributedDataParallel(m, process_group=dist.new_group([0, 2])),
            ("register_comm_hook", (None, default_hooks.allreduce_hook)),
        ),
        (
            "what `DistributedDataParallel` makes of the gradients is not known: its communication hook `allreduce_hook` "
            "may do anything with the gradients."
        ),
    ),
    "ddp, requires_grad changed": (
        lambda m, mesh: unfrozen(m),
        (
            "what `DistributedDataParallel` makes of the gradients is not known: `requires_grad` changed since it was made: "
            "it reduces 3 gradients of 4."
        ),
    ),
    "fully_shard, factor": (
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_gradient_divide_factor", (3.0,))),
        (
            "what `fully_shard` makes of the gradients is not known: `set_gradient_divide_factor(3)` divides neither by 1 "
            "nor by its 4 ranks."
        ),
    ),
    "fully_shard, hook": (
        lambda m, mesh: after(fully_shard(m, mesh=mesh), ("set_all_reduce_hook", (print,))),
        (
            "what `fully_shard` makes of the gradients is not known: its hook of `set_all_reduce_hook` may do anything with "
            "the gradients."
        ),
    ),
    "replicate on fsdp, torch divides twice": (
        lambda m, mesh: after(
            replicate_on_fsdp(m, mesh=mesh),
            ("set_gradient_divide_factor", (4.0,)),
            ("set_force_sum_reduction_for_comms", (True,)),
        ),
        (
            "what `replicate` makes of the gradients is not known: torch divides by `set_gradient_divide_factor` twice on "
            "an axis of one shard in this setting."
        ),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_promise_that_is_not_known(name: str) -> None:
    wrap, said = UNKNOWN[name]
    found = report(wrap)
    assert found.verdict is Verdict.UNPROVED
    assert [(finding.code, finding.message) for finding in found.findings] == [
        ("VC206", f"{said} Say with `grad_placements` how they may leave the program, or take the setting away.")
    ]


def test_over_a_group_that_is_a_line_of_the_mesh() -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = DistributedDataParallel(Regression(), process_group=mesh.get_group("dp"))
        found = verifycompile.verify(model, pairs(), mesh=mesh)
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert mean("DistributedDataParallel", "dp") + OUTSIDE in found.assumptions


@pytest.mark.parametrize("wrap", [DistributedDataParallel, replicate])
def test_around_tensor_parallelism(wrap: Callable[..., nn.Module]) -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = parallelize_module(Regression(), mesh["tp"], dict(mlp.plan()))
        found = verifycompile.verify(wrap(model, device_mesh=mesh["dp"]), pairs())
    assert found.verdict is Verdict.VERIFIED, str(found)
    assert "`x` is placed (S(0), R) by default" in found.assumptions


@pytest.mark.parametrize("is_tensor_parallel", [False, True])
def test_a_sharded_model_that_holds_gradients(is_tensor_parallel: bool) -> None:
    """As it is asked about between two steps."""
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        model = Regression()
        if is_tensor_parallel:
            parallelize_module(model, mesh["tp"], dict(mlp.plan()))
        model = fully_shard(model, mesh=mesh["dp"])
        model(*pairs()).backward()
        assert all(value.grad is not None for value in model.parameters())
        assert verifycompile.verify(model, pairs(), spec=Regression()).verdict is Verdict.VERIFIED
        model.set_gradient_divide_factor(1.0)
        assert verifycompile.verify(model, pairs(), spec=Regression()).verdict is Verdict.REFUTED


FIRST_FSDP = (
    "error[VC310]: `FullyShardedDataParallel` (FSDP1) is not understood: its parameters are parts of flat tensors that "
    "it gathers and reduces by itself. Use `torch.distributed.fsdp.fully_shard`."
)


@pytest.mark.filterwarnings("ignore")
def test_the_first_fsdp_is_named() -> None:
    with fake_mesh_world(*FOUR):
        model = FullyShardedDataParallel(Regression(), device_id=torch.device("cpu"), use_orig_params=True)
        with pytest.raises(UsageError) as raised:
            verifycompile.verify(model, pairs())
        assert str(raised.value) == FIRST_FSDP
        # Dynamo reads torch's dictionary of modules, out of which a collection would take those of earlier tests.
        gc.collect()
        with pytest.raises(UsageError) as raised:
            torch.compile(model, backend="verify", options={"inner": "eager"})(*pairs())
        assert str(raised.value) == FIRST_FSDP


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("does", ["returns", "reduces"])
def test_mixed_precision_that_does_more_than_round(does: str) -> None:
    """A module whose parameters other wrappers manage returns what its own policy says."""
    with fake_mesh_world(*FOUR) as mesh:
        model = Regression()
        if does == "returns":
            fully_shard([model.up, model.down], mesh=mesh)
        dtype = "output_dtype" if does == "returns" else "reduce_dtype"
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**{dtype: torch.int32}))
        for ask in (verifycompile.verify, lambda m, args: torch.compile(m, backend="verify")(*args)):
            with pytest.raises(UsageError) as raised, torch.set_grad_enabled(does == "reduces"):
                ask(model, pairs())
            assert str(raised.value) == (
                f"error[VC310]: `fully_shard` {does} in torch.int32 by its mixed precision, which is no rounding."
            )


class Counter:
    """An inner backend that counts how often a frame was compiled, and so verified."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        self.calls += 1
        return graph.forward


def test_a_factor_that_changes_is_verified_again() -> None:
    with fake_mesh_world(*FOUR) as mesh:
        inner = Counter()
        model = fully_shard(Regression(), mesh=mesh)
        compiled = torch.compile(model, backend="verify", options={"inner": inner})
        for _ in range(3):
            compiled(*pairs()).backward()
        assert inner.calls == 1
        model.set_requires_gradient_sync(False)  # an accumulation step: what was proved holds for the step that reduces
        compiled(*pairs()).backward()
        assert inner.calls == 1
        model.set_gradient_divide_factor(1.0)
        with pytest.raises(verifycompile.RefinementError) as raised:
            compiled(*pairs())
    assert raised.value.report.findings[0].message == (
        "`grad.up.weight` is returned as each rank's own over dp; it must be the mean"
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_that_is_wrapped_after_its_first_call_is_verified_then() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return centre(self.layer(x))

    @torch.compile(backend="verify", options={"inner": "eager"})
    def centre(x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)

    with fake_mesh_world(*FOUR):
        model = Centred()
        model(pairs()[0])
        with pytest.raises(verifycompile.RefinementError) as raised:
            DistributedDataParallel(model)(pairs()[0])
    assert raised.value.report.findings[0].message == (
        "`x.mean(0)` runs over dimension 0 of `x`, of which each rank of `data_parallel` holds a part: each rank has "
        "the result of its own part"
    )


def test_replicated_placements_can_be_said() -> None:
    found = report(UNREDUCED["fully_shard"], in_placements={"x": (Replicate(),), "y": (Replicate(),)})
    assert found.verdict is Verdict.VERIFIED, str(found)


HELD: list[nn.Module] = []


@pytest.mark.parametrize("hooked", ["all modules", "a global variable", "an own variable"])
def test_hooks_that_would_meet_copies_of_the_modules(hooked: str) -> None:
    """A hook that asks for a module gets its copy, unless it is called for all modules or found by a global variable."""
    model = Regression()
    down = model.down
    HELD[:] = [down]

    def scale(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2 if module is down else output

    def scale_held(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2 if module is HELD[0] else output

    with fake_mesh_world(*FOUR):
        register = register_module_forward_hook if hooked == "all modules" else down.register_forward_hook
        handle = register(scale_held if hooked == "a global variable" else scale)
        wrapped = DistributedDataParallel(model)
        try:
            if hooked == "an own variable":
                assert verifycompile.verify(wrapped, pairs(), spec=Regression()).verdict is Verdict.REFUTED
            else:
                with pytest.raises(UsageError, match=r"VC310.*copies of the modules here"):
                    verifycompile.verify(wrapped, pairs(), spec=Regression())
        finally:
            handle.remove()
