"""Programs that torch compiles in several graphs: what one returns is laid out for the next as it was proved."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

from tests.support import fake_mesh_world
from verifycompile import RefinementError, UsageError, Verdict, verify
from verifycompile.capture.single_device.spec import BROKEN
from verifycompile.torch_interface.dynamo import handed_over

# Dynamo looks at the gradient of what the graph before returned.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@torch._dynamo.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Broken(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.up, self.down = kind, nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.up(x))
        torch._dynamo.graph_break()
        if "outside" in self.kind:
            hidden = outside(hidden)
        z = self.down(hidden)
        if "again" in self.kind:
            torch._dynamo.graph_break()
        return (z - y).square().sum() if "sum" in self.kind else (z - y).square().mean()


def run(model: nn.Module, *args: torch.Tensor, **options: Any) -> torch.Tensor:
    compiled: Any = torch.compile(model, backend="verify", options={"inner": "aot_eager", **options})
    return compiled(*args)


def sharded(kind: str, **placements: Any) -> torch.Tensor:
    """The batch and the parameters are sharded; the loss is a rank's own, or the sum of it."""
    rows = (Shard(0),)
    with fake_mesh_world((2,), ("dp",)) as mesh:
        model = Broken(kind)
        fully_shard(model, mesh=mesh)
        return run(model, torch.randn(4, 8), torch.randn(4, 8), in_placements={"x": rows, "y": rows, **placements})


@pytest.mark.parametrize("kind", ["mean", "mean again"])
def test_rows_of_each_rank_after_a_break(kind: str) -> None:
    assert sharded(kind).requires_grad


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sum", "`grad.down.weight` is averaged over dp, though the ranks hold parts of a sum"),
        ("sum again", "`grad.z` is the gradient of a loss that is summed over the ranks; it must be their mean"),
    ],
)
def test_a_loss_after_a_break_that_is_summed_where_the_mean_is_taken(kind: str, message: str) -> None:
    with pytest.raises(RefinementError) as refused:
        sharded(kind)
    assert refused.value.report.verdict.name == "UNPROVED"
    assert (refused.value.report.findings[0].code, refused.value.report.findings[0].message) == ("VC103", message)


def test_what_is_computed_outside_of_graphs_is_not_known() -> None:
    with pytest.raises(UsageError) as refused:
        sharded("mean outside")
    line = inspect.getsource(Broken).splitlines().index("            hidden = outside(hidden)")
    assert str(refused.value) == (
        f"error[VC305]: `___stack0`, a value in line {inspect.getsourcelines(Broken)[1] + line} of test_graph_breaks.py, "
        "is computed between graphs, after a graph break: how it is sharded is not known. "
        "Say it with `in_placements`, or remove the break."
    )
    assert sharded("mean outside", ___stack0=(Shard(0),)).requires_grad
    with pytest.raises(RefinementError):
        sharded("sum outside", ___stack0=(Shard(0),))


def test_the_report_says_in_which_line_a_value_between_graphs_is_computed() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Broken("mean outside")
        parallelize_module(model, mesh, {"down": RowwiseParallel(input_layouts=Replicate(), output_layouts=Partial())})
        with pytest.raises(RefinementError) as refused:
            run(model, torch.randn(4, 8), torch.randn(4, 8))
    line = inspect.getsource(Broken).splitlines().index("            hidden = outside(hidden)")
    place = f"line {inspect.getsourcelines(Broken)[1] + line} of test_graph_breaks.py"
    said = f"`___stack0`, a value in {place}, is computed between graphs, which nothing checks"
    assert said in refused.value.report.assumptions


class Looped(nn.Module):
    """Dynamo runs a function whole as Python where the graph breaks in a loop, and what it calls in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


@pytest.mark.filterwarnings("ignore:`forward` runs without having been checked")
@pytest.mark.parametrize("output", [Replicate(), Partial()])
def test_hooks_of_styles_are_compiled_alone_and_pass_on_what_they_are_given(output: Any) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Looped()
        styles = {
            "layers.0": RowwiseParallel(input_layouts=Replicate(), output_layouts=output),
            "layers.1": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, styles)
        if output == Replicate():
            assert run(model, torch.randn(4, 8)).requires_grad
            return
        with pytest.raises(RefinementError) as refused:
            run(model, torch.randn(4, 8))
        finding = refused.value.report.findings[0]
        assert refused.value.report.verdict is Verdict.UNPROVED
        assert (finding.code, finding.message) == (
            "VC101",
            "`output.0` is a partial sum, and goes to Python code that nothing checks",
        )
        assert "".join(finding.notes) == (
            "torch.compile compiles `hook of RowwiseParallel on Linear` alone, since what calls it runs as Python code: "
            "reduce the sum before it is returned, declare it with `out_placements`, or remove what breaks the graph "
            "(`fullgraph=True` shows where it is)"
        )


class OneMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))).pow(2).mean()


@pytest.mark.parametrize("output", [None, Partial()])
def test_data_parallel_copies_of_dtensors_are_asked_about_as_a_whole(output: Any) -> None:
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        spec, model = OneMean(), OneMean()
        styles = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=output)}
        parallelize_module(model, mesh["tp"], styles)
        _pre_dp_module_transform(model)
        whole = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
        with pytest.raises(UsageError) as refused:
            torch.compile(whole, backend="verify")(torch.randn(4, 8))
        assert str(refused.value) == (
            "error[VC305]: under `DistributedDataParallel` the model's DTensors are made of plain parameters in hooks, "
            "which torch compiles apart from the model: no compiled graph has both. Ask about the model as a whole, "
            "before it is trained: `verifycompile.verify(model, args)`."
        )
        report = verify(whole, (torch.randn(4, 8),), spec=spec)
        assert report.verdict is (Verdict.VERIFIED if output is None else Verdict.REFUTED), str(report)


class Parts(nn.Module):
    def __init__(self, is_linear: bool) -> None:
        super().__init__()
        self.is_linear, self.up, self.down = is_linear, nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        torch._dynamo.graph_break()
        return y * 2 if self.is_linear else torch.relu(y)


def parallel(mesh: DeviceMesh, output: Any, *, is_linear: bool) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=output)}
    return parallelize_module(Parts(is_linear), mesh, plan)


@pytest.mark.parametrize(("output", "is_linear"), [(Replicate(), False), (Shard(0), False), (Partial(), True)])
def test_a_layout_goes_through_a_break(output: Any, is_linear: bool) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        result = run(parallel(mesh, output, is_linear=is_linear), torch.randn(4, 8))
    assert pickle.loads(pickle.dumps(result.detach())).shape == result.shape


def test_a_sum_that_is_missing_before_a_break_is_refuted_behind_it() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh, pytest.raises(RefinementError) as refused:
        run(parallel(mesh, Partial(), is_linear=False), torch.randn(4, 8))
    assert refused.value.report.verdict.name == "REFUTED"
    assert refused.value.report.findings[0].code == "VC101"
    assert "`y` is placed (P(sum)), as the graph that returned it holds it" in refused.value.report.assumptions


class Decides(Parts):
    """A function behind a graph break asks for the sign of a sum: the whole sum, or a rank's part of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        torch._dynamo.graph_break()
        return x * 2 if _is_positive(y) else x * 3


def _is_positive(total: torch.Tensor) -> bool:
    return bool((total.sum() > 0).item())


def test_a_function_that_takes_a_partial_sum_between_graphs_is_asked_with_its_layout() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        assert run(parallelize_module(Decides(False), mesh, plan), torch.randn(4, 8)).shape == (4, 8)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        with pytest.raises(RefinementError) as refused:
            run(parallelize_module(Decides(False), mesh, plan), torch.randn(4, 8))
    finding = refused.value.report.findings[0]
    assert finding.code == "VC101"
    assert finding.location is not None
    assert finding.location.function == "_is_positive"


@torch.compiler.disable
def _called(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    return function()


class GoesOnInPython(Parts):
    """What takes the sum is not compiled: it is disabled, given up, or finds it in a container."""

    def __init__(self, way: str) -> None:
        super().__init__(False)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.way)(self.down(torch.relu(self.up(x))))

    @torch.compiler.disable
    def disabled(self, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(y)

    def given_up(self, y: torch.Tensor) -> torch.Tensor:
        try:
            torch._dynamo.graph_break()
            raise ValueError(y)  # noqa: TRY301 - as users do
        except ValueError as error:
            return torch.relu(error.args[0])

    def in_a_container(self, y: torch.Tensor) -> torch.Tensor:
        held = {"y": y}
        self.changed(held)
        return torch.relu(held["y"])

    def left_behind(self, y: torch.Tensor) -> torch.Tensor:
        self.kept = y
        return self.read()

    @torch.compiler.disable
    def read(self) -> torch.Tensor:
        return torch.relu(self.kept)

    def closed_over(self, y: torch.Tensor) -> torch.Tensor:
        return _called(lambda: torch.relu(y))

    @torch.compiler.disable
    def changed(self, held: dict[str, torch.Tensor]) -> None:
        held["y"] = held["y"] + 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("way", "name", "reason"),
    [
        ("disabled", "y", "`disabled` runs as Python code: torch.compiler.disable keeps it from being compiled"),
        ("given_up", "y", "`given_up` runs as Python code: "),
        ("left_behind", "self", "`read` runs as Python code: torch.compiler.disable keeps it from being compiled"),
        ("closed_over", "function", "`_called` runs as Python code: torch.compiler.disable keeps it from being compiled"),
        ("in_a_container", "held", "`changed` runs as Python code: torch.compiler.disable keeps it from being compiled"),
    ],
)
@pytest.mark.filterwarnings("ignore:`given_up` runs without having been checked")
def test_python_code_that_is_not_compiled_gets_no_partial_sum(way: str, name: str, reason: str) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        whole = run(parallelize_module(GoesOnInPython(way), mesh, plan), torch.randn(4, 8))
        assert whole.shape == (4, 8)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        with pytest.raises(RefinementError) as refused:
            run(parallelize_module(GoesOnInPython(way), mesh, plan), torch.randn(4, 8))
    (finding,) = refused.value.report.findings
    assert finding.code == "VC101"
    assert finding.message == f"`{name}` is a partial sum, and goes to Python code that nothing checks"
    assert finding.notes[0].startswith(reason)
    assert finding.impl_location is not None
    title = reason.split("`")[1]
    function: Any = inspect.unwrap(getattr(GoesOnInPython, title, None) or globals()[title])
    assert finding.impl_location.line == function.__code__.co_firstlineno


class DisabledModule(Parts):
    """A module between two others is kept from being compiled, in the program and in the spec recovered from it."""

    def __init__(self) -> None:
        super().__init__(False)
        self.act: Any = torch.compiler.disable(nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.down(self.act(self.up(x))))


def test_a_disabled_module_is_disabled_in_the_recovered_spec() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        assert run(parallelize_module(DisabledModule(), mesh, plan), torch.randn(4, 8)).shape == (4, 8)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        with pytest.raises(RefinementError) as refused:
            run(parallelize_module(DisabledModule(), mesh, plan), torch.randn(4, 8))
    (finding,) = refused.value.report.findings
    assert refused.value.report.verdict is Verdict.REFUTED
    assert finding.code == "VC101"
    assert finding.location is not None
    lines, first = inspect.getsourcelines(DisabledModule.forward)
    assert finding.location.line == first + len(lines) - 1


class Holder:
    """Any object."""


class LeavesToLibraries(Parts):
    """The graph ends at a call of what torch never looks at, or of what is disabled and finds the sum in an object."""

    def __init__(self, way: str) -> None:
        super().__init__(False)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.way)(self.down(torch.relu(self.up(x))).detach())

    def pickled(self, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(pickle.loads(pickle.dumps({"y": [y]}))["y"][0])  # here

    def as_an_array(self, y: torch.Tensor) -> torch.Tensor:
        array = y.numpy()
        torch._dynamo.graph_break()  # here
        return torch.relu(torch.from_numpy(array))

    def in_an_object(self, y: torch.Tensor) -> torch.Tensor:
        holder = Holder()
        holder.parts = {"y": y}  # type: ignore[attr-defined]  # any attribute
        return _called(functools.partial(_of_parts, holder))


def _of_parts(holder: Any) -> torch.Tensor:
    return torch.relu(holder.parts["y"])


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.parametrize("way", ["pickled", "as_an_array", "in_an_object"])
def test_no_partial_sum_goes_to_what_torch_never_looks_at(way: str) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        assert run(parallelize_module(LeavesToLibraries(way), mesh, plan), torch.randn(4, 8)).shape == (4, 8)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        with pytest.raises(RefinementError) as refused:
            run(parallelize_module(LeavesToLibraries(way), mesh, plan), torch.randn(4, 8))
    (finding,) = refused.value.report.findings
    assert refused.value.report.verdict is Verdict.UNPROVED
    assert (finding.code, "goes to Python code that nothing checks" in finding.message) == ("VC101", True)
    lines, first = inspect.getsourcelines(getattr(LeavesToLibraries, way))
    marked = [first + number for number, line in enumerate(lines) if line.endswith("# here\n")]
    assert finding.impl_location is not None
    assert not marked or [finding.impl_location.line] == marked


class GoesOnBehindABreak(Parts):
    """What the second graph takes is left to code that torch never looks at."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x))).detach()
        torch._dynamo.graph_break()
        return torch.relu(pickle.loads(pickle.dumps(y)))


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "`y` is a partial sum, and goes to Python code that nothing checks"),
        (".unknown", "`y` cannot be looked at, may be a partial sum, and goes to Python code that nothing checks"),
    ],
)
def test_what_cannot_be_looked_at_may_be_a_partial_sum(
    expression: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_of = handed_over._source
    sources = {"L['y']": f"L['y']{expression}"}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        whole = parallelize_module(GoesOnBehindABreak(False), mesh, plan)
        assert run(whole, torch.randn(4, 8)).shape == (4, 8)
        monkeypatch.setattr(handed_over, "_source", lambda v: sources.get(source_of(v), source_of(v)))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        with pytest.raises(RefinementError) as refused:
            run(parallelize_module(GoesOnBehindABreak(False), mesh, plan), torch.randn(4, 8))
    (finding,) = refused.value.report.findings
    assert (refused.value.report.verdict, finding.code) == (Verdict.UNPROVED, "VC101")
    assert finding.message == message


def test_one_compiled_function_after_another() -> None:
    options: dict[str, Any] = {"backend": "verify", "options": {"inner": "eager"}}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        first: Any = torch.compile(parallel(mesh, Partial(), is_linear=True), **options)
        second: Any = torch.compile(torch.relu, **options)
        third: Any = torch.compile(lambda y: 3 * y, **options)
        result = first(torch.randn(4, 8))
        assert third(result).shape == (4, 8)
        with pytest.raises(RefinementError) as refused:
            second(result)
    assert refused.value.report.verdict.name == "REFUTED"
    assert "`args.0` is placed (P(sum)), as the graph that returned it holds it" in refused.value.report.assumptions


@torch.compiler.disable
def _doubled(y: torch.Tensor) -> torch.Tensor:
    return 2 * y


def test_what_runs_outside_after_the_graph_is_not_compared_with_a_spec() -> None:
    placed = {"x": (Shard(0),)}
    options = {"spec": lambda x: torch.tanh(x), "inner": "eager", "in_placements": placed}
    with fake_mesh_world((2,), ("dp",)) as mesh:
        program = torch.compile(lambda x: _doubled(torch.tanh(x)), backend="verify", options={**options, "mesh": mesh})
        with pytest.raises(UsageError) as caught:
            program(torch.randn(4, 4))
    before, behind = BROKEN.split("{}")
    message = str(caught.value)
    assert message.startswith(f"error[VC305]: {before} at `program = torch.compile(lambda x: _doubled(torch.tanh(x)), ")
    assert f"(test_graph_breaks.py:{program.__wrapped__.__code__.co_firstlineno}){behind}" in message


class Layer(nn.Linear):
    """Its forward is compiled on its own, torch's is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # another name of the argument
        return super().forward(x)


class Nested(nn.Module):
    """Hooks of ``fully_shard`` on its layers break the graph."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.second = kind, Layer(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if self.kind in ("features", "rows"):
            hidden = hidden - hidden.mean(0 if self.kind == "rows" else 1, keepdim=True)
        hidden = self.second(hidden) * self.scale
        if self.kind == "twice":
            hidden = self.second(hidden)
        return hidden.sum() if self.kind == "sum" else hidden.square().mean()


def run_nested(kind: str, **options: Any) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        model = Nested(kind)
        for module in (model.first, model.second, model):
            fully_shard(module, mesh=mesh)
        run(model, torch.randn(2, 4), inner="eager", **options).backward()


@pytest.mark.parametrize("kind", ["", "features", "twice"])
def test_sharded_layers_inside_of_a_sharded_model(kind: str) -> None:
    run_nested(kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("rows", "error[VC114]: statistics of a rank's own part"), ("sum", "unproved[VC103]: wrong scale (suspected)")],
)
def test_wrong_models_of_sharded_layers(kind: str, message: str) -> None:
    with pytest.raises(RefinementError) as raised:
        run_nested(kind)
    assert str(raised.value).startswith(message)


def test_a_spec_of_the_whole_for_sharded_layers() -> None:
    with pytest.raises(UsageError) as raised:
        run_nested("", spec=Nested())
    assert str(raised.value) == (
        "error[VC305]: `forward` runs as Python code, and what it calls is compiled in parts (a graph break comes before "
        "all that it computes), but the option `spec` says what the whole program computes. Remove what breaks the graph "
        "(`fullgraph=True` shows where it is; hooks of `fully_shard` on inner modules do), leave the option out, or "
        "compile each part by itself with its own spec."
    )
