"""Random programs, parallelized rightly by construction, most with one unsound edit; what is wrong must not verify.

:func:`questions` is a hypothesis strategy, so that a failure shrinks to the fewest steps. :func:`ask` asks the verifier and
the numbers: both programs are run on all ranks in float64, every output is assembled in the layout that was asked
for, and compared.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from tests.attacks.lockstep import DeadlockError, run_ranks
from tests.attacks.parallel import OPERATORS, PER_RANK, SIZE, Edit, Layout, Rank, Value, members
from tests.oracle import _layout_error
from tests.support import fake_mesh_world
from verifycompile import Report, UsageError, Verdict
from verifycompile.capture.ranks.captured_graphs import CapturedGraphs
from verifycompile.frontends.graphs import Graphs

TOLERANCE = 1e-9
MESHES = (*[(2,)] * 12, (4,), (4,), (2, 2), (2, 2), (8,), (2, 4))
INPUTS = ("x", "w", "v")
"""An activation and two weights, which later steps read like any value."""


@dataclasses.dataclass(frozen=True)
class Step:
    """``operands``: counted back from the newest value. ``choice``: which of the ways of parallelizing is taken."""

    operator: str
    operands: tuple[int, int]
    choice: int


@dataclasses.dataclass(frozen=True)
class Question:
    """``layouts``: of the inputs. ``layers``: how often the steps are repeated. ``edit``: None where nothing is wrong."""

    mesh: tuple[int, ...]
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]
    layers: int
    backward: bool
    edit: tuple[int, int, int | None] | None
    """Place (modulo the number of places), way, and the only rank that is wrong."""

    @property
    def kind(self) -> str:
        if self.backward:
            return "layers with backward" if self.layers > 1 else "expressions with backward"
        if any(step.operator in PER_RANK for step in self.steps):
            return "programs of their rank"
        return "layers" if self.layers > 1 else "expressions"


class Numbers(enum.Enum):
    EQUAL = "equal"
    WRONG = "wrong"


class Way(enum.Enum):
    """How the verifier is asked: about graphs of all ranks, or about a function by the rank that it acts."""

    GRAPHS = "graphs"
    MODEL = "model"


@dataclasses.dataclass(frozen=True)
class Answer:
    """``edited``: the kind of decision that was got wrong, None where nothing was.

    ``failure``: the error that the proof ended in.
    """

    verdict: Verdict
    numbers: Numbers
    edited: str | None
    kind: str
    failure: str = ""

    @property
    def verified_wrongly(self) -> bool:
        return self.verdict is Verdict.VERIFIED and self.numbers is Numbers.WRONG


# ---------------------------------------------------------------------------------------------- strategies


def _layouts(axes: int) -> st.SearchStrategy[Layout]:
    return st.tuples(*[st.sampled_from(["R", 0, 1])] * axes)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    mesh = draw(st.sampled_from(MESHES))
    count = draw(st.integers(1, 4))
    names = list(OPERATORS)
    steps = tuple(
        Step(
            draw(st.sampled_from(names if k % 2 else [*names, *["product"] * 12])),
            (draw(st.integers(0, 1)) if k else 0, draw(st.integers(0, 3 + k))),
            draw(st.integers(0, 15)),
        )
        for k in range(count)
    )
    layers = draw(st.sampled_from([1, 1, 1, 2, 3]))
    backward = draw(st.booleans())
    edit = None
    if draw(st.integers(0, 4)):
        only = draw(st.integers(0, math.prod(mesh) - 1)) if not draw(st.integers(0, 5)) else None
        edit = (draw(st.integers(0, 40)), draw(st.integers(0, 7)), only)
    return Question(mesh, tuple(draw(_layouts(len(mesh))) for _ in INPUTS), steps, layers, backward, edit)


# ---------------------------------------------------------------------------------------------- programs


def _execute(question: Question, rank: Rank, inputs: Sequence[torch.Tensor]) -> Value:
    layouts = question.layouts if rank.mesh else ((),) * len(inputs)
    held = [Value(local, layout) for local, layout in zip(inputs, layouts, strict=True)]
    held = [held[1], held[2], held[0]]
    for layer in range(question.layers):
        for step in question.steps:
            first, second = (held[-1 - k % len(held)] for k in step.operands)
            found = OPERATORS[step.operator](rank, first, second, step.choice)
            held.append(found)
        if layer + 1 < question.layers:
            # Between layers only the newest value is kept, beside the weights.
            held = [*held[:2], held[-1]]
    return rank.without(held[-1], "P")


def _outputs(question: Question, rank: Rank, inputs: Sequence[torch.Tensor], cotangent: torch.Tensor) -> Any:
    if not question.backward:
        return (_execute(question, rank, inputs).local,)
    leaves = [value.detach().requires_grad_() for value in inputs]
    result = _execute(question, rank, leaves)
    if not result.local.requires_grad:
        return result.local, *(torch.zeros_like(leaf) for leaf in leaves)
    gradients = torch.autograd.grad(result.local, leaves, cotangent, allow_unused=True)
    filled = (torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True))
    return result.local, *filled


def _meta(shape: Sequence[int]) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.float64)


def local_shape(layout: Layout, mesh: Sequence[int]) -> list[int]:
    shape = [SIZE, SIZE]
    for kind, size in zip(layout, mesh, strict=True):
        if isinstance(kind, int):
            shape[kind] //= size
    return shape


def decisions(question: Question) -> tuple[list[str], Layout]:
    """What the right program decides, and the layout of its result."""
    rank = Rank(0, question.mesh)
    shapes = [local_shape(layout, question.mesh) for layout in question.layouts]
    result = _execute(question, rank, [_meta(shape) for shape in shapes])
    return rank.asked, result.layout


def place(kind: Any) -> Placement:
    return Shard(kind) if isinstance(kind, int) else Partial() if kind == "P" else Replicate()


def _part(whole: torch.Tensor, layout: Layout, rank: Rank) -> torch.Tensor:
    for kind, coordinate, size in zip(layout, rank.place, rank.mesh, strict=True):
        if isinstance(kind, int):
            whole = whole.chunk(size, kind)[coordinate]
    return whole.contiguous()


def groups_of(mesh: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    lines = {(axis, members(mesh, axis, rank)) for axis in range(len(mesh)) for rank in range(math.prod(mesh))}
    return {f"{axis}.{line[0]}": line for axis, line in lines}


@functools.cache
def whole_inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) * scale for scale in (1.0, 0.5, 0.5, 1.0)
    )


def _trace(question: Question, rank: Rank, parts: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    def run(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, cotangent: torch.Tensor) -> Any:
        return _outputs(question, rank, (x, w, v), cotangent)

    return make_fx(run, tracing_mode="fake")(*parts)


@dataclasses.dataclass(frozen=True)
class Traced:
    spec: torch.fx.GraphModule
    ranks: tuple[torch.fx.GraphModule, ...]
    """One graph a rank, or one that every rank runs."""
    inputs: tuple[tuple[torch.Tensor, ...], ...]
    relations: tuple[tuple[Layout, ...], tuple[Layout, ...]]
    edited: str | None


def traced(question: Question) -> Traced | None:
    """Both programs; None where the edit gives values of other shapes than the right program has."""
    asked, layout = decisions(question)
    edit = edited = None
    if question.edit is not None and asked:
        number, way, only = question.edit
        edit, edited = Edit(number % len(asked), way, only), asked[number % len(asked)]
    ranks = [Rank(number, question.mesh, edit) for number in range(math.prod(question.mesh))]
    layouts = (*question.layouts, layout)
    inputs = tuple(
        tuple(_part(whole, kinds, rank) for whole, kinds in zip(whole_inputs(), layouts, strict=True)) for rank in ranks
    )
    try:
        graphs = [_trace(question, ranks[0], inputs[0])]
        if ranks[0].reads_its_place or len(question.mesh) > 1:
            graphs += [_trace(question, rank, parts) for rank, parts in zip(ranks[1:], inputs[1:], strict=True)]
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    spec = _trace(question, Rank(0, ()), whole_inputs())
    outputs = (layout, *question.layouts) if question.backward else (layout,)
    for graph in graphs:
        found = [tuple(node.meta["val"].shape) for node in graph.graph.output_node().args[0]]
        if found != [tuple(local_shape(kinds, question.mesh)) for kinds in outputs]:
            return None
    return Traced(spec, tuple(graphs), inputs, (layouts, outputs), edited)


def ask(question: Question, way: Way = Way.GRAPHS) -> Answer | None:
    """What the verifier says to a question, and what the numbers say.

    None where the edit makes no program, or one that computes the same: neither is a mistake to be found.
    """
    if way is Way.MODEL:
        question = dataclasses.replace(question, backward=False)
    programs = traced(question)
    if programs is None:
        return None
    numbers = numbers_of(programs, question.mesh)
    if programs.edited is not None and numbers is Numbers.EQUAL:
        return None
    try:
        report = (_report_on_model if way is Way.MODEL else _report_on_graphs)(question, programs)
    except UsageError:
        return Answer(Verdict.UNPROVED, numbers, programs.edited, question.kind)
    return Answer(report.verdict, numbers, programs.edited, "through `verify`" if way is Way.MODEL else question.kind)


def _arguments(question: Question, programs: Traced) -> dict[str, Any]:
    names = [node.name for node in programs.spec.graph.nodes if node.op == "placeholder"]
    inputs, outputs = programs.relations
    return {
        "spec_graph": programs.spec,
        "rank_graphs": programs.ranks[0] if len(programs.ranks) == 1 else list(programs.ranks),
        "in_relations": {name: tuple(map(place, layout)) for name, layout in zip(names, inputs, strict=True)},
        "out_relations": {f"output.{k}": tuple(map(place, layout)) for k, layout in enumerate(outputs)},
        "mesh": question.mesh,
        "groups": groups_of(question.mesh),
    }


def graphs_of(question: Question, programs: Traced) -> CapturedGraphs:
    """What ``verify_graphs`` captures of the programs before it asks anything."""
    return Graphs(**_arguments(question, programs)).programs()


def _report_on_graphs(question: Question, programs: Traced) -> Report:
    return verifycompile.verify_graphs(**_arguments(question, programs))


def numbers_of(programs: Traced, mesh: tuple[int, ...]) -> Numbers:
    """Whether all outputs of all ranks are those of the spec, in the layouts that were asked for."""
    expected = programs.spec(*whole_inputs())
    try:
        graphs = programs.ranks * (len(programs.inputs) // len(programs.ranks))
        found = run_ranks(graphs, programs.inputs, groups_of(mesh))
    except (DeadlockError, RuntimeError):
        return Numbers.WRONG
    for k, (whole, layout) in enumerate(zip(expected, programs.relations[1], strict=True)):
        values = [results[k] for results in found]
        # Zeros where something of the size of one is expected are wrong, and rounding is not.
        if _layout_error(values, whole, tuple(map(place, layout)), mesh, 1e-3) > TOLERANCE:
            return Numbers.WRONG
    return Numbers.EQUAL


# ---------------------------------------------------------------------------------------------- through ``verify``


def _report_on_model(question: Question, programs: Traced) -> Report:
    inputs, outputs = programs.relations
    edit = _edit_of(question)
    with fake_mesh_world(question.mesh, ("a", "b")[: len(question.mesh)]) as mesh:

        def build() -> Callable[..., torch.Tensor]:
            rank = _LiveRank(mesh.get_rank(), question.mesh, edit, device_mesh=mesh)
            return lambda x, w, v: _execute(question, rank, (x, w, v)).local

        return verifycompile.verify(
            build(),
            programs.inputs[0][:3],
            mesh=mesh,
            build=build,
            spec=lambda x, w, v: _execute(question, Rank(0, ()), (x, w, v)).local,
            in_placements={name: tuple(map(place, layout)) for name, layout in zip(INPUTS, inputs[:3], strict=True)},
            out_placements={"output.0": tuple(map(place, outputs[0]))},
        )


def _edit_of(question: Question) -> Edit | None:
    asked, _ = decisions(question)
    if question.edit is None or not asked:
        return None
    place_of_edit, way, only = question.edit
    return Edit(place_of_edit % len(asked), way, only)


@dataclasses.dataclass
class _LiveRank(Rank):
    """A rank whose groups are those of a mesh."""

    device_mesh: DeviceMesh | None = None

    def group(self, axis: int) -> str:
        assert self.device_mesh is not None
        return self.device_mesh.get_group(axis).group_name
