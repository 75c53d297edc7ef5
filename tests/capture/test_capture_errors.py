"""What cannot be captured as asked: one clear error each; what cannot be proved: a blocker by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh, fake_mesh_world
from verifycompile.capture import capture_model
from verifycompile.errors import UsageError
from verifycompile.options import Options

R = Replicate()


class Plain(nn.Module):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(8, hidden, bias=False)
        self.down = nn.Linear(hidden, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Explicit(Plain):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(4)
        self.group = mesh["tp"].get_group()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(super().forward(x), "sum", self.group)


PLACEMENTS = {"up.weight": (R, Shard(0)), "down.weight": (R, Shard(1))}


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=5) as mesh:
        yield mesh


def error(model: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        capture_model(model, args or (torch.randn(4, 8),), {}, Options.from_mapping(options))
    return str(caught.value)


def blockers(function: Any, *args: Any, **options: Any) -> list[tuple[str, str]]:
    _, implementation = capture_model(function, args, {}, Options.from_mapping(options))
    return list(dict.fromkeys((blocker.code, blocker.message) for blocker in implementation.blockers))


def test_usage_errors_have_code_and_message() -> None:
    failure = UsageError("VC301", "no device mesh.")
    assert (failure.code, failure.message, str(failure)) == (
        "VC301",
        "no device mesh.",
        "error[VC301]: no device mesh.",
    )


def test_no_mesh(mesh: DeviceMesh) -> None:
    assert error(Plain()) == (
        "error[VC301]: no device mesh: no parameter or input of this graph is a DTensor. "
        "Name the mesh of your process groups with the option `mesh`."
    )


def test_several_meshes(mesh: DeviceMesh) -> None:
    other = fake_mesh((4, 2), ("a", "b"))
    first = distribute_tensor(torch.randn(8), mesh, [Shard(0), R])
    second = distribute_tensor(torch.randn(8), other, [Shard(0), R])
    message = error(lambda x, y: (x.sin(), y.sin()), first, second)
    assert message == (
        "error[VC302]: the DTensors of this graph lie on 2 meshes that are not parts of one: "
        "(dp=2, tp=4) on ranks 0 to 7; (a=4, b=2) on ranks 0 to 7. "
        "Make them slices of one mesh, or name the one to use with the option `mesh`."
    )


def test_wrong_number_of_placements(mesh: DeviceMesh) -> None:
    message = error(Explicit(mesh), mesh=mesh, spec=Plain(), param_placements={"up.weight": (Shard(0),)})
    assert message == "error[VC303]: `up.weight` has 1 placements, but the mesh has 2 axes (dp, tp)."


def test_shard_of_a_dimension_that_does_not_exist(mesh: DeviceMesh) -> None:
    message = error(Explicit(mesh), mesh=mesh, spec=Plain(), param_placements={"up.weight": (R, Shard(3))})
    assert message == (
        "error[VC303]: `up.weight` has 2 dimensions, but its placement is Shard(dim=3): (Replicate(), Shard(dim=3))."
    )


class Branching(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x.sum(-1) > 0]
        return super().forward(x) * 2 if rows.shape[0] > 2 else super().forward(x)


@torch.library.custom_op("capture_errors::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@kept.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def branching(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2 if gradient[gradient.sum(-1) > 0].shape[0] > 2 else gradient


kept.register_autograd(branching)


class BranchingBackward(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kept(super().forward(x))


class FirstOfPicked(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[x.sum(-1) > 0].reshape(-1, 8, 8)[0])


DEPENDS = "A size or a branch depends on the content of a tensor, which torch cannot trace (`u0 > 2`)."
OUT_OF_BOUNDS = "index 0 is out of bounds for dimension 0 with size (u0//8)"
ONE_GRAPH, RUNS = "error[VC305]: the model does not trace to one graph.", "error[VC303]: the model does not run on these inputs."
BACKWARD = "error[VC303]: torch cannot trace the model's forward and backward on these inputs."


@pytest.mark.parametrize(
    ("model", "said", "function", "line"),
    [
        (Branching, (ONE_GRAPH, DEPENDS), Branching.forward, 2),
        (BranchingBackward, (BACKWARD, DEPENDS), branching, 1),
        (FirstOfPicked, (RUNS, OUT_OF_BOUNDS), FirstOfPicked.forward, 1),
    ],
)
def test_what_depends_on_data(model: type[Plain], said: tuple[str, str], function: Any, line: int, mesh: DeviceMesh) -> None:
    parallel = parallelize_module(model(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    code = function.__code__
    place = f'  File "{__file__}", line {code.co_firstlineno + line}, in {code.co_name}'
    assert error(parallel).splitlines()[:4] == [*said, "  From:", place]


def test_shapes_that_do_not_fit_the_spec(mesh: DeviceMesh) -> None:
    message = error(Explicit(mesh), mesh=mesh, spec=Plain(32), param_placements=PLACEMENTS)
    assert message == (
        "error[VC303]: parameter `up.weight` has shape [16, 8] over the mesh "
        "(placements (Replicate(), Shard(dim=0))), but the spec's has shape [32, 8]. "
        "Check the option `param_placements` or the model's shapes."
    )


def test_a_spec_that_does_not_run_on_the_whole_inputs(mesh: DeviceMesh) -> None:
    message = error(Explicit(mesh), mesh=mesh, spec=nn.Linear(9, 9), param_placements=PLACEMENTS)
    assert message.startswith("error[VC303]: the spec does not run on the model's whole inputs.\n")


def test_other_parameters(mesh: DeviceMesh) -> None:
    class Other(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.bias

    model = parallelize_module(Plain(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert error(model, spec=Other()) == (
        "error[VC304]: the spec and the model have different parameters. Only in the spec: `bias`. "
        "Map names that differ with the option `param_names`."
    )
    assert error(model, spec=lambda x: x + 1) == (
        "error[VC304]: the spec and the model have different parameters. "
        "Only in the model: `down.weight`, `up.weight`. Map names that differ with the option `param_names`."
    )


class Broken(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return super().forward(x)


def test_graph_breaks(mesh: DeviceMesh) -> None:
    model = parallelize_module(Broken(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    line = Broken.forward.__code__.co_firstlineno + 1
    explanation = (
        "Call to `torch._dynamo.graph_break()`\n"
        "  Explanation: User-inserted graph break. Message: None\n"
        "  Hint: Remove the `torch._dynamo.graph_break()` call.\n"
        "  From:\n"
        f'  File "{__file__}", line {line}, in forward\n'
        "    torch._dynamo.graph_break()"
    )
    assert error(model) == f"error[VC305]: the model does not trace to one graph.\n{explanation}"
    model = parallelize_module(Plain(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert error(model, spec=Broken()) == f"error[VC305]: the spec does not trace to one graph.\n{explanation}"


def test_unknown_options() -> None:
    assert error(Plain(), specs=Plain()) == (
        "error[VC306]: unknown option `specs`; did you mean `spec`? The options are `spec`, `mesh`, `in_placements`, `param_placements`, "
        "`param_names`, `out_placements`, `grad_placements`, `build`, `per_rank_numbers`, `inner`, `on_unproved`, "
        "`time_limit`, `memory_limit`, `waivers`."
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("spec", 3, "option `spec` must be an nn.Module or a callable."),
        ("mesh", 3, 'option `mesh` must be a DeviceMesh: make one with `torch.distributed.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))`.'),
        ("in_placements", {"x": 3}, 'option `in_placements`: the value for `x` must be a tuple of placements: write `{"x": (Shard(0),)}`.'),
        ("out_placements", {"x": (3,)}, 'option `out_placements`: the value for `x` must be a tuple of placements: write `{"x": (Shard(0),)}`.'),
        ("grad_placements", 3, 'option `grad_placements` must map names to tuples of placements: `grad_placements={"layer.weight": (Shard(0),)}`.'),
        ("param_names", 3, "option `param_names` must map implementation names to spec names."),
        ("on_unproved", "ignore", 'option `on_unproved` must be "error" or "warn".'),
    ],
)
def test_options_of_the_wrong_kind(option: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Options.from_mapping({option: value})
    assert str(caught.value) == f"error[VC306]: {message}"


def test_a_single_placement_stands_for_a_mesh_of_one_axis() -> None:
    assert Options.from_mapping({"in_placements": {"x": Shard(0)}}).in_placements == {"x": (Shard(0),)}


def test_names_that_do_not_exist(mesh: DeviceMesh) -> None:
    common = {"mesh": mesh, "spec": Plain(), "param_placements": PLACEMENTS}
    assert error(Explicit(mesh), **common, in_placements={"z": (R, R)}) == (
        "error[VC306]: option `in_placements` names `z`; the plain tensor inputs are `x`."
    )
    assert error(Explicit(mesh), **common, out_placements={"output.1": (R, R)}) == (
        "error[VC306]: option `out_placements` names `output.1`; the outputs are `output.0`."
    )
    assert error(Explicit(mesh), **common, grad_placements={"left.*": (R, R)}) == (
        "error[VC306]: option `grad_placements`: nothing matches `left.*`; "
        "the tensors are `down.weight`, `up.weight`, `x`."
    )


def test_a_spec_that_cannot_be_called(mesh: DeviceMesh) -> None:
    message = error(Explicit(mesh), mesh=mesh, spec=lambda: 3, param_placements=PLACEMENTS)
    assert message == (
        "error[VC306]: the option `spec` cannot be called as the model is: too many positional arguments."
    )


def test_a_spec_that_cannot_be_recovered(mesh: DeviceMesh) -> None:
    assert error(Explicit(mesh), mesh=mesh) == (
        "error[VC307]: the single-device program cannot be recovered from this model: without the hooks of "
        "torch.distributed it still holds DTensors or collectives. "
        "Pass the single-device program as the option `spec`."
    )
    assert error(Explicit(mesh), mesh=mesh, spec=Explicit(mesh)) == (
        "error[VC307]: the option `spec` is no single-device program: it holds DTensors or collectives."
    )


def test_a_model_that_runs_on_local_shapes_only(mesh: DeviceMesh) -> None:
    class Local(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).view(4, 4) * 2)

    model = parallelize_module(Local(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    message = error(model)
    assert message.startswith(
        "error[VC307]: the single-device program cannot be recovered from this model: it does not run on whole "
        "tensors. Pass the single-device program as the option `spec`.\n"
    )
    assert "return self.down(self.up(x).view(4, 4) * 2)" in message


def test_a_plain_parameter_without_placement(mesh: DeviceMesh) -> None:
    assert error(Explicit(mesh), mesh=mesh, spec=Plain()) == (
        "error[VC308]: parameter `up.weight` is a plain tensor of shape [4, 8], but the spec's has shape [16, 8]. "
        "Say how it is laid out with the option `param_placements`."
    )


def test_uneven_shards_block(mesh: DeviceMesh) -> None:
    uneven = distribute_tensor(torch.randn(6, 8), mesh["tp"], [Shard(0)])
    found = blockers(lambda x: x.sin(), uneven)
    assert found[0] == (
        "VC204",
        "dimension 0 of `x` has size 6, which mesh axes tp (4 ranks) do not divide evenly.",
    )


def test_uneven_shards_on_the_way_block(mesh: DeviceMesh) -> None:
    whole = distribute_tensor(torch.randn(6, 8), mesh["tp"], [R])

    def function(x: Any) -> Any:
        return x.redistribute(placements=[Shard(0)]).redistribute(placements=[R])

    found = blockers(function, whole)
    assert {code for code, _ in found} == {"VC204"}
    assert found[0][1].startswith("the size of dimension 0 of `slice in x.redistribute(")


def test_unknown_placements_block(mesh: DeviceMesh) -> None:
    class OtherPartial(Partial):
        """A reduction of a user's own."""

    placements = [R, OtherPartial("sum")]
    found = blockers(lambda x: x * 2, DTensor.from_local(torch.randn(8, 8), mesh, placements, run_check=False))
    assert found[0] == (
        "VC206",
        f"`x` has placement {placements[1]!r}; only Shard, Replicate and Partial can be represented.",
    )


def test_programs_that_differ_by_rank_block(mesh: DeviceMesh) -> None:
    whole = distribute_tensor(torch.randn(8, 8), mesh["tp"], [R])

    def scaled(x: Any) -> Any:
        return x * 2 if dist.get_rank() == 6 else x.exp()

    line = scaled.__code__.co_firstlineno + 1
    assert blockers(scaled, whole, spec=lambda x: x * 5) == [
        (
            "VC203",
            (
                f"`get_rank` in `scaled` (test_capture_errors.py:{line}) is a constant "
                "of the graph that was captured on this rank; other ranks run other graphs: rank 6 calls "
                f"`aten.mul.Tensor` where rank 5 calls `aten.exp.default` (line {line})."
            ),
        )
    ]


def test_rank_constants_of_torch_block(mesh: DeviceMesh) -> None:
    """A new sharded dimension of uneven shards is padded by torch with this rank's number."""
    shard = distribute_tensor(torch.randn(8, 6), mesh["tp"], [Shard(0)])
    _, implementation = capture_model(
        lambda x: x.redistribute(placements=[Shard(1)]) * 2, (shard,), {}, Options(spec=lambda x: x * 2)
    )
    assert "VC203" in {blocker.code for blocker in implementation.blockers}
    assert "all_gather_into_tensor" in {
        blocker.node.name for blocker in implementation.blockers if blocker.node is not None
    }


def test_numbers_that_are_not_linear_in_the_rank_block(mesh: DeviceMesh) -> None:
    found = blockers(lambda x: x * dist.get_rank() ** 3, torch.randn(4), mesh=mesh, spec=lambda x: x)
    assert [code for code, _ in found] == ["VC203"]
    assert found[0][1].endswith(
        "a number of `x * dist.get_rank() ** 3` is not linear in the rank's coordinates: 125 on rank 5, 0 on rank 0, 1 on rank 1, "
        "8 on rank 2 and so on."
    )


def test_groups_that_are_no_mesh_axes_block(mesh: DeviceMesh) -> None:
    group = dist.new_group([1, 2, 5])
    found = blockers(lambda x: collectives.all_reduce(x, "sum", group), torch.randn(4), mesh=mesh, spec=lambda x: x * 3)
    assert found == [("VC206", "the process group of ranks [1, 2, 5] is no product of mesh axes.")]


def test_groups_that_the_mesh_did_not_make_are_assumed(mesh: DeviceMesh) -> None:
    def assumptions(mesh: DeviceMesh, group: dist.ProcessGroup) -> tuple[str, ...]:
        _, implementation = capture_model(
            lambda x: collectives.all_reduce(x, "sum", group),
            (torch.randn(4),),
            {},
            Options(mesh=mesh, spec=lambda x: x * 2),
        )
        return implementation.assumptions

    general = "the model object is the one that rank 5 built, and stands for all 8 ranks"
    assert assumptions(mesh, mesh["tp"].get_group()) == (general,)
    three = fake_mesh((2, 2, 2), ("pp", "dp", "tp"))
    assert assumptions(three, dist.new_group([4, 5, 6, 7])) == (
        general,
        "on every rank, the group that is ranks [4, 5, 6, 7] here is that rank's slice of dp, tp",
    )


def test_parameter_that_the_model_forgets_is_no_other_model():
    """It has no gradient, which is a fault of the program and not of how it is compared."""

    class Scaled(torch.nn.Module):
        def __init__(self, reads):
            super().__init__()
            self.scale, self.reads = torch.nn.Parameter(torch.ones(4)), reads
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) * (self.scale if self.reads else 1)

    with fake_mesh_world((2,), ("dp",)) as mesh:
        options = {"mesh": mesh, "in_placements": {"x": (Shard(0),)}, "grad_placements": {"*": (Partial(),)}}
        reports = [
            verifycompile.verify(
                Scaled(reads),
                (torch.randn(2, 4),),
                {},
                spec=Scaled(True),
                **options,
                param_placements={"scale": (Replicate(),)},
            )
            for reads in (True, False)
        ]
    assert reports[0]
    assert reports[1].verdict is verifycompile.Verdict.REFUTED
    assert "no gradient `grad.scale`" in reports[1].findings[0].message


def test_distribute_tensor_in_a_compiled_function_is_refused_by_name(mesh: DeviceMesh) -> None:
    """Torch breaks the graph there, and hands the placement on as if it were a value."""

    @torch.compile(backend="verify", options={"mesh": mesh})
    def program(x: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(x * 2, mesh, [R, Shard(0)]).full_tensor()

    with pytest.raises(UsageError) as refused:
        program(torch.randn(8, 8))
    assert str(refused.value) == (
        "error[VC305]: the compiled program hands `Shard(dim=0)` to a call that torch does not trace, as "
        "`distribute_tensor` is: what it computes could not be compared. Distribute the tensor outside of the compiled "
        "program, or write `DTensor.from_local(x, mesh, [Replicate()]).redistribute(...)`."
    )


def test_what_the_refusal_of_distribute_tensor_advises_is_proved(mesh: DeviceMesh) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(x * 2, mesh, [R, R]).redistribute(placements=[R, Shard(0)]).full_tensor()

    report = verifycompile.verify(program, (torch.randn(8, 8),), mesh=mesh, spec=lambda x: x * 2)
    assert report.verdict is verifycompile.Verdict.VERIFIED, str(report)
    report = verifycompile.verify(program, (torch.randn(8, 8),), mesh=mesh, spec=lambda x: x * 3)
    assert report.verdict is verifycompile.Verdict.REFUTED, str(report)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_process_groups_of_the_mesh_were_destroyed(compiled: bool) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(nn.Linear(2, 2), mesh, ColwiseParallel())
    question = torch.compile(model, backend="verify") if compiled else lambda x: capture_model(model, (x,), {}, Options())
    with pytest.raises(UsageError) as caught:
        question(torch.ones(2, 2))
    assert str(caught.value) == (
        "error[VC301]: the process groups of the mesh (tp) were destroyed. Call `init_process_group` again, and make the "
        "mesh and the model anew."
    )
