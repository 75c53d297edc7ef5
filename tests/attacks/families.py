"""Families of programs: one program that is right by construction, traced once, and many edits of its graphs.

Most of what a generated program costs is torch's tracing, so a family shares it. An edit inserts or changes a call in the
graphs of all ranks or of one; of each kind there are edits that keep every value (``RIGHT``). What an edited program is
worth is decided by the numbers of all ranks, and the verifier is asked for its proof alone: VERIFIED is given by nothing
else, and what follows a failed proof (a counterexample, the cause) can only refute.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from hypothesis import strategies as st

from tests.attacks.generated import (
    TOLERANCE,
    Answer,
    Numbers,
    Question,
    graphs_of,
    place,
    questions,
    traced,
    whole_inputs,
)
from tests.attacks.lockstep import DeadlockError, run_ranks
from tests.attacks.parallel import members
from tests.oracle import _layout_error
from verifycompile import Verdict
from verifycompile.capture.in_parts import in_parts
from verifycompile.capture.ranks.captured_graphs import CapturedGraphs
from verifycompile.capture.ranks.merged_collectives import UnmergeableError
from verifycompile.capture.ranks.rank_schedule import OrderError
from verifycompile.cause.draft import Draft
from verifycompile.program import Program
from verifycompile.rank_programs import as_one_device
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.dtensor_shards import misread_shards
from verifycompile.torch_interface.communication.in_place_collectives import ranks_of

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

STEPS = 4
"""In all layers together."""


@dataclasses.dataclass(frozen=True)
class Change:
    """``place`` and ``way``: modulo the number of calls, and of what can be done to one. ``choice``: of an operand.

    ``rank``: the only one whose graph is changed, None for all.
    """

    place: int
    way: int
    choice: int
    rank: int | None


@dataclasses.dataclass(frozen=True)
class Family:
    """``question``: without an edit."""

    question: Question
    changes: tuple[Change, ...]


@st.composite
def families(draw: st.DrawFn, changes: int) -> Family:
    question = draw(questions())
    question = dataclasses.replace(question, steps=question.steps[: STEPS // question.layers], edit=None)
    numbers = st.integers(0, 255)
    rank = st.sampled_from([None, None, None, *range(math.prod(question.mesh))])
    change = st.builds(Change, numbers, numbers, numbers, rank)
    return Family(question, tuple(draw(st.lists(change, min_size=changes, max_size=changes))))


# ---------------------------------------------------------------------------------------------- edits


@dataclasses.dataclass
class Site:
    """A call in the graph of one rank."""

    draft: Draft
    node: torch.fx.Node
    number: int
    mesh: tuple[int, ...]
    choice: int
    users: list[torch.fx.Node] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.users = list(self.node.users)

    @property
    def value(self) -> Any:
        return self.node.meta["val"]

    def computed(self, after: torch.fx.Node, target: Any, args: Sequence[Any]) -> torch.fx.Node:
        """A new call behind ``after``, with what torch records of its result. Raises what torch raises."""
        with self.value.fake_mode:
            value = target(*torch.fx.map_arg(tuple(args), lambda item: item.meta["val"]))
        return self.draft.insert(after, target, args, value)

    def instead(self, *calls: tuple[Any, tuple[Any, ...]]) -> None:
        """Calls applied to this value one after the other: what took the value takes the last one's result."""
        found = self.node
        for target, args in calls:
            found = self.computed(found, target, (found, *args))
        self.replaced(found)

    def other_call(self, target: Any, args: Sequence[Any]) -> None:
        """Another call at this place."""
        self.replaced(self.computed(self.node, target, args))

    def replaced(self, found: torch.fx.Node) -> None:
        """Lets all that took this value take another one."""
        if found.meta["val"].shape != self.value.shape or found.meta["val"].dtype != self.value.dtype:
            raise ValueError("a value of another shape")
        if found.meta["val"].stride() != self.value.stride():
            found = self.computed(found, aten.contiguous.default, (found,))
        if found.meta["val"].stride() != self.value.stride():
            raise ValueError("a value of other strides")
        self.draft.redirect(self.node, found, self.users)
        outputs = self.draft.program.outputs
        self.draft.set_outputs(dataclasses.replace(o, node=found) if o.node is self.node else o for o in outputs)

    def result(self) -> Site:
        """Where the result of a collective is waited for."""
        (waited,) = self.node.users
        return dataclasses.replace(self, node=waited)

    def other_value(self) -> torch.fx.Node:
        """An earlier value of this shape."""
        found: list[torch.fx.Node] = []
        for node in self.draft.program.graph.graph.nodes:
            if node is self.node:
                break
            if (
                is_value(node)
                and node.meta["val"].shape == self.value.shape
                and node.meta["val"].dtype == self.value.dtype
            ):
                found.append(node)
        return found[self.choice % len(found)]


def is_value(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    computed = node.op in ("placeholder", "call_function") and namespace(node) != "_c10d_functional"
    return computed and isinstance(value, torch.Tensor) and value.is_floating_point()


def namespace(node: torch.fx.Node) -> str:
    return getattr(node.target, "namespace", "")


Way = Callable[[Site], None]


def _then(*calls: tuple[Any, tuple[Any, ...]]) -> Way:
    return lambda site: site.instead(*calls)


ANY: dict[str, Way] = {
    "doubled": _then((aten.mul.Tensor, (2.0,))),
    "negated": _then((aten.neg.default, ())),
    "forgotten": _then((aten.mul.Tensor, (0.0,))),
    "absolute value": _then((aten.abs.default, ())),
    "transposed": _then((aten.transpose.int, (0, -1))),
    "turned around": _then((aten.flip.default, ([0],))),
    "moved by one": _then((aten.roll.default, ([1], [-1]))),
    "shifted": _then((aten.add.Tensor, (0.125,))),
    "another value": lambda site: site.replaced(site.other_value()),
    "sum with another value": lambda site: site.replaced(
        site.computed(site.node, aten.add.Tensor, (site.node, site.other_value()))
    ),
}
"""Mistakes with any value."""

RIGHT: dict[str, Way] = {
    "negated twice": _then((aten.neg.default, ()), (aten.neg.default, ())),
    "doubled and halved": _then((aten.mul.Tensor, (2.0,)), (aten.mul.Tensor, (0.5,))),
    "transposed twice": _then((aten.transpose.int, (0, -1)), (aten.transpose.int, (0, -1))),
    "turned around twice": _then((aten.flip.default, ([0],)), (aten.flip.default, ([0],))),
    "added and subtracted": lambda site: site.replaced(
        site.computed(
            added := site.computed(site.node, aten.add.Tensor, (site.node, site.other_value())),
            aten.sub.Tensor,
            (added, site.other_value()),
        )
    ),
    "halves": lambda site: _halves(site),
}
"""Other ways of writing the same."""


def _halves(site: Site) -> None:
    half = site.computed(site.node, aten.mul.Tensor, (site.node, 0.5))
    site.replaced(site.computed(half, aten.add.Tensor, (half, half)))


UNARY = tuple(
    getattr(aten, name).default
    for name in ("relu", "tanh", "sigmoid", "sin", "cos", "exp", "neg", "gelu", "silu", "abs")
)
BINARY = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default)
SUMS = (aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.mean.dim)
TRIANGLES = (aten.tril.default, aten.triu.default)


def _another_of(targets: Sequence[Any]) -> Way:
    def way(site: Site) -> None:
        others = [target for target in targets if target is not site.node.target]
        site.other_call(others[site.choice % len(others)], site.node.args)

    return way


def _operands_exchanged(site: Site) -> None:
    first, second, *rest = site.node.args
    site.other_call(site.node.target, (second, first, *rest))


def _another_operand(site: Site) -> None:
    operands = [k for k, item in enumerate(site.node.args) if isinstance(item, torch.fx.Node) and is_value(item)]
    changed = operands[site.choice % len(operands)]
    args = list(site.node.args)
    taken = args[changed]
    assert isinstance(taken, torch.fx.Node)
    values: list[torch.fx.Node] = []
    for node in site.draft.program.graph.graph.nodes:
        if node is site.node:
            break
        if is_value(node) and node is not taken and node.meta["val"].shape == taken.meta["val"].shape:
            values.append(node)
    args[changed] = values[site.choice // 4 % len(values)]
    site.other_call(site.node.target, args)


def _another_number(site: Site) -> None:
    numbers = [k for k, item in enumerate(site.node.args) if type(item) in (int, float)]
    changed = numbers[site.choice % len(numbers)]
    args: list[Any] = list(site.node.args)
    by = site.choice // 4
    args[changed] += (1, -1, 2)[by % 3] if isinstance(args[changed], int) else (0.25, -0.5, 1e-3)[by % 3]
    site.other_call(site.node.target, args)


def calls_of(node: torch.fx.Node) -> dict[str, Way]:
    """What can be got wrong at this call in particular."""
    if namespace(node) == "_c10d_functional":
        return {} if node.target is c10d.wait_tensor.default else COLLECTIVES[node.target]
    found: dict[str, Way] = {}
    for name, targets in (("function", UNARY), ("operator", BINARY), ("reduction", SUMS), ("triangle", TRIANGLES)):
        if node.target in targets and not node.kwargs:
            found[f"another {name}"] = _another_of(targets)
    operands = [item for item in node.args if isinstance(item, torch.fx.Node)]
    if operands and not node.kwargs:
        found["another operand"] = _another_operand
    if len(operands) > 1 and not node.kwargs:
        found["operands exchanged"] = _operands_exchanged
    if any(type(item) in (int, float) for item in node.args) and not node.kwargs:
        found["another number"] = _another_number
    return found


# ---------------------------------------------------------------------------------------------- edits of collectives


def _operand(site: Site) -> torch.fx.Node:
    operand = site.node.args[0]
    assert isinstance(operand, torch.fx.Node)
    return operand


def _not_called(site: Site) -> None:
    site.result().replaced(_operand(site))


def _called_twice(site: Site) -> None:
    waited = site.result()
    again = waited.computed(waited.node, site.node.target, (waited.node, *site.node.args[1:]))
    waited.replaced(waited.computed(again, c10d.wait_tensor.default, (again,)))


def _another_reduction(site: Site) -> None:
    others = [name for name in ("sum", "avg", "max") if name != site.node.args[1]]
    value, _, *rest = site.node.args
    site.draft.set_arguments(site.node, (value, others[site.choice % 2], *rest))


def _another_group(site: Site) -> None:
    """The group along another axis."""
    own = ranks_of(str(site.node.args[-1]))
    lines = [members(site.mesh, axis, site.number) for axis in range(len(site.mesh))]
    others = [line for line in lines if line != own and len(line) == len(own)]
    key = "ranks:" + ",".join(map(str, others[0]))
    site.draft.set_arguments(site.node, (*site.node.args[:-1], key))


def _own_part(site: Site) -> None:
    """No sum before the rank's own part is taken."""
    group, value = ranks_of(str(site.node.args[-1])), _operand(site)
    rows = value.meta["val"].shape[0] // len(group)
    start = group.index(site.number) * rows
    waited = site.result()
    waited.replaced(waited.computed(waited.node, aten.slice.Tensor, (value, 0, start, start + rows)))


def _copies(site: Site) -> None:
    waited = site.result()
    waited.replaced(waited.computed(waited.node, aten.cat.default, ([_operand(site)] * int(site.node.args[1]),)))  # pyright: ignore[reportArgumentType]


def _another_order(site: Site) -> None:
    waited, size = site.result(), int(site.node.args[1])  # pyright: ignore[reportArgumentType]
    rows = waited.value.shape[0] // size
    last, parts = waited.node, list[torch.fx.Node]()
    for part in reversed(range(size)):
        last = waited.computed(last, aten.slice.Tensor, (waited.node, 0, part * rows, (part + 1) * rows))
        parts.append(last)
    waited.replaced(waited.computed(last, aten.cat.default, (parts,)))


COLLECTIVES: dict[Any, dict[str, Way]] = {
    c10d.all_reduce.default: {
        "not called": _not_called,
        "called twice": _called_twice,
        "another reduction": _another_reduction,
        "another group": _another_group,
    },
    c10d.reduce_scatter_tensor.default: {
        "another reduction": _another_reduction,
        "another group": _another_group,
        "own part": _own_part,
    },
    c10d.all_gather_into_tensor.default: {"copies": _copies, "order": _another_order, "another group": _another_group},
}


# ---------------------------------------------------------------------------------------------- asking


class _Groups(Mapping[str, tuple[int, ...]]):
    """The ranks that a key of captured graphs names."""

    def __getitem__(self, key: str) -> tuple[int, ...]:
        return ranks_of(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def proved(graphs: CapturedGraphs) -> bool:
    """Whether the proof of ``verify_graphs`` holds; nothing of what is done where it does not."""
    spec, implementation = graphs.spec, graphs.implementation()
    if not implementation.ranks:
        return not spec.blockers and _proves(spec, implementation)
    if misread_shards(spec, implementation.ranks, graphs.mesh) is not None:
        return False
    try:
        whole = as_one_device(spec, graphs.mesh, implementation.ranks)
    except (OrderError, UnmergeableError):
        return False
    return _proves(*whole) or any(_proves(*parts) for parts in in_parts(*whole))


def _proves(spec: Program, implementation: Program) -> bool:
    return not implementation.blockers and check_refinement(spec, implementation).mismatch is None


@dataclasses.dataclass
class Held:
    """A family's graphs, which are edited and put back."""

    question: Question
    graphs: CapturedGraphs
    drafts: list[Draft]
    inputs: tuple[tuple[torch.Tensor, ...], ...]
    expected: tuple[torch.Tensor, ...]
    layouts: tuple[Any, ...]

    def asked(self, alike: bool) -> CapturedGraphs:
        """Copies of the graphs, for graphs of several ranks are written as one in place.

        ``alike``: whether every rank runs the graph of the first, where that is so before the edit.
        """
        drafts = self.drafts[:1] if alike and len(self.graphs.programs) == 1 else self.drafts
        return dataclasses.replace(self.graphs, programs=tuple(Draft(draft.program).program for draft in drafts))

    def numbers(self, alike: bool) -> Numbers | None:
        """None where a value is no number, or there is none."""
        graphs = [draft.program.graph for draft in self.drafts]
        if alike and len(self.graphs.programs) == 1:
            graphs = graphs[:1] * len(graphs)
        try:
            found = run_ranks(graphs, self.inputs, _Groups())
        except DeadlockError:
            return Numbers.WRONG
        except (RuntimeError, IndexError):
            return None
        if not all(isinstance(value, torch.Tensor) and value.isfinite().all() for values in found for value in values):
            return None
        wrong = Numbers.EQUAL
        for k, (whole, layout) in enumerate(zip(self.expected, self.layouts, strict=True)):
            placements = tuple(map(place, layout))
            error = _layout_error([values[k] for values in found], whole, placements, self.question.mesh, 1e-3)
            if error > TOLERANCE:
                wrong = Numbers.WRONG
        return wrong


def held(question: Question) -> Held | None:
    programs = traced(question)
    if programs is None:
        return None
    graphs = graphs_of(question, programs)
    ranks = math.prod(question.mesh)
    drafts = [Draft(graphs.programs[rank % len(graphs.programs)]) for rank in range(ranks)]
    expected = programs.spec(*whole_inputs())
    return Held(question, graphs, drafts, programs.inputs, expected, programs.relations[1])


def edit(held: Held, change: Change) -> str | None:
    """Makes the change; what it is called, None where it is none that can be made."""
    sites = [
        node.name
        for node in held.drafts[0].program.graph.graph.nodes
        if is_value(node) or namespace(node) == "_c10d_functional"
    ]
    name = sites[change.place % len(sites)]
    first = held.drafts[0].nodes[name]
    own = calls_of(first) if first.op == "call_function" else {}
    # What is particular to a call is drawn as often as what can be done to any value.
    kinds = [own, own, ANY, RIGHT] if is_value(first) else [own]
    ways = kinds[change.way % len(kinds)]
    if not ways:
        return None
    called = list(ways)[change.way // 4 % len(ways)]
    done = False
    for number, draft in enumerate(held.drafts):
        node = draft.nodes.get(name)
        if change.rank not in (None, number) or node is None or node.target is not first.target:
            continue
        try:
            ways[called](Site(draft, node, number, held.question.mesh, change.choice))
        except Exception:  # noqa: BLE001 - what torch rejects, with errors of all kinds, is no program
            return None
        done = True
    return called if done else None


def ask_family(family: Family) -> Iterator[tuple[Answer, Callable[[], CapturedGraphs]]]:
    """What the proof and the numbers say to the program itself, and to each change that makes another program.

    Each with what gives the graphs that were asked about, for as long as the next one is not asked for.
    """
    found = held(family.question)
    if found is None:
        return
    for change in (None, *family.changes):
        called = None if change is None else edit(found, change)
        if change is None or called is not None:
            alike = change is None or change.rank is None
            numbers = found.numbers(alike)
            if numbers is Numbers.WRONG or (numbers is Numbers.EQUAL and (called is None or called in RIGHT)):
                answer = _answer(family, found.asked(alike), numbers, called)
                yield answer, functools.partial(found.asked, alike)
        for draft in found.drafts:
            draft.undo()


def _answer(family: Family, asked: CapturedGraphs, numbers: Numbers, called: str | None) -> Answer:
    found, failure = False, ""
    try:
        found = proved(asked)
    except Exception as error:  # noqa: BLE001 - shown with the results: nothing a user writes may have this end
        failure = f"{type(error).__name__}: {error}"
    verdict = Verdict.VERIFIED if found else Verdict.UNPROVED
    return Answer(verdict, numbers, called, family.question.kind, failure)
