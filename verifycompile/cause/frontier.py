"""Where the implementation leaves the spec, on numbers: spec values that no implementation node holds any more.

Where several faults lie one behind the other, no single change mends an output. What a change of one of them mends is
the next value of the spec behind it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Replicate, Shard

from verifycompile.cause.trial import Trial
from verifycompile.program import Program
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.interpreter import Interpreter, ancestors, descendants
from verifycompile.witness.layout import assemble

_TOLERANCE = 1e-9
NEAR = 12
"""So many nodes behind a change are looked at."""
MOST_LOST = 80
_MOST_PIECES = 16
"""Into so many parts a value may be cut that nodes hold one by one."""
MOST_BEHIND = 400
"""So many nodes behind a change show whether it mends values of the spec."""


@dataclasses.dataclass(frozen=True)
class Frontier:
    """``missing``: values of the spec that no implementation node holds in any shape; ``held``: how many are held.

    ``of_nodes``: which values of the spec a node on the way to the wanted outputs holds.
    """

    missing: tuple[torch.Tensor, ...]
    held: int
    known: _Marks
    of_nodes: Mapping[torch.fx.Node, frozenset[int]]


def frontier(trial: Trial, program: Program, values: Interpreter, wanted: Iterable[str]) -> Frontier:
    """What is missing on the way to the wanted outputs. ``values``: those of ``program`` on the trial's input."""
    names = set(wanted)
    spec = trial.spec.graph.graph
    needed = ancestors(output.node for output in trial.spec.outputs if output.name in names)
    computed = [node for node in spec.nodes if node in needed and node.op == "call_function"]
    leaving = {output.node for output in trial.spec.outputs}
    told = [node for node in computed if node in leaving or not is_view(node.target)]
    values_of_spec = [value for node in told if (value := _spec_value(trial, node)) is not None]
    marks = _Marks([value.flatten() for value in values_of_spec])
    of_nodes = {node: _holds(marks, values, program, node) for node in _on_the_way(program, names)}
    held = frozenset[int]().union(*of_nodes.values())
    missing = tuple(value for number, value in enumerate(values_of_spec) if number not in held)
    return Frontier(missing, len(held), marks, of_nodes)


def held_with(
    before: Frontier, program: Program, values: Interpreter, wanted: Iterable[str], changed: Iterable[torch.fx.Node]
) -> int:
    """How many of the spec's values are held where ``changed`` nodes are others; of those behind, ``MOST_BEHIND``
    are looked at.
    """
    later = descendants(changed)
    behind = [node for node in _on_the_way(program, set(wanted)) if node in later][:MOST_BEHIND]
    seen = set(behind)
    rest = (held for node, held in before.of_nodes.items() if node not in seen)
    return len(frozenset[int]().union(*rest, *(_holds(before.known, values, program, node) for node in behind)))


def _on_the_way(program: Program, names: Container[str]) -> list[torch.fx.Node]:
    ours = ancestors(output.node for output in program.outputs if output.name in names)
    return [node for node in program.graph.graph.nodes if node in ours]


def _holds(marks: _Marks, values: Interpreter, program: Program, node: torch.fx.Node) -> frozenset[int]:
    found = (marks.found(value.flatten()) for value in _wholes(values, program, node))
    return frozenset(itertools.chain.from_iterable(found))


def reaches(found: Frontier, program: Program, values: Interpreter, changed: Iterable[torch.fx.Node]) -> bool:
    """Whether a node near behind a change holds a value that was missing."""
    marks = _Marks(found.missing)
    later = descendants(changed)
    near = [node for node in program.graph.graph.nodes if node in later][:NEAR]
    return any(marks.hold(value) for node in near for value in _wholes(values, program, node))


def first_lost(trial: Trial, program: Program, values: Interpreter, wanted: Iterable[str]) -> frozenset[str]:
    """Names of the nodes behind which the spec is left first, on the way to the wanted output that is computed first.

    From the output backwards, up to what holds a value of the spec; ``MOST_LOST`` of these nodes, the first ones.
    """
    names = set(wanted)
    leaving = {output.node for output in program.outputs if output.name in names}
    order = {node: place for place, node in enumerate(program.graph.graph.nodes)}
    if not leaving:
        return frozenset()
    computed = [node for node in trial.spec.graph.graph.nodes if node.op in ("call_function", "placeholder")]
    marks = _Marks(value for node in computed if (value := _spec_value(trial, node)) is not None)
    lost: set[torch.fx.Node] = set()
    pending = [min(leaving, key=order.__getitem__)]
    while pending:
        node = pending.pop()
        if node not in lost and (node in leaving or not any(map(marks.hold, _wholes(values, program, node)))):
            lost.add(node)
            pending.extend(node.all_input_nodes)
    return frozenset(node.name for node in sorted(lost, key=order.__getitem__)[:MOST_LOST])


def holders(
    trial: Trial,
    wanted: Sequence[torch.fx.Node],
    nodes: Iterable[torch.fx.Node],
    wholes_of: Callable[[torch.fx.Node], Iterable[torch.Tensor]],
) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Those of some nodes, in their order, that hold the values of nodes of the spec; where none does, those that hold
    one of several equal parts of them: micro-batches.
    """
    known = {node: value for node in wanted if (value := _spec_value(trial, node, floating=False)) is not None}
    found: dict[torch.fx.Node, list[torch.fx.Node]] = {node: [] for node in wanted}
    listed = list(known)
    marks, of_pieces = _Marks(known.values()), dict[tuple[int, ...], tuple[_Marks, list[torch.fx.Node]]]()
    pieces: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    for node in nodes:
        for whole in wholes_of(node) if node.op in ("call_function", "placeholder") else ():
            for theirs in [listed[number] for number in marks.found(whole)]:
                found[theirs] += [] if found[theirs][-1:] == [node] else [node]
            shape = tuple(whole.shape)
            if shape not in of_pieces:
                cut = [(piece, theirs) for theirs, value in known.items() for piece in _pieces(value, shape)]
                of_pieces[shape] = _Marks(piece for piece, _ in cut), [theirs for _, theirs in cut]
            marks_here, of = of_pieces[shape]
            pieces += [(of[number], node) for number in marks_here.found(whole)]
    held = {theirs for theirs, holding in found.items() if holding}
    for theirs, node in pieces:
        if theirs not in held and node not in found[theirs]:
            found[theirs].append(node)
    return found


def _pieces(value: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """The equal parts of a value that have a shape; those along one dimension."""
    dims = [dim for dim, size in enumerate(value.shape) if len(shape) == value.dim() and size != shape[dim]]
    if len(dims) != 1 or not 1 < value.shape[dims[0]] / max(shape[dims[0]], 1) <= _MOST_PIECES:
        return []
    parts = value.split(shape[dims[0]], dims[0])
    return list(parts) if tuple(parts[-1].shape) == shape else []


def wholes(parts: Sequence[torch.Tensor], shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """The tensors that the ranks' values may be: all the same, or shards of one dimension per mesh axis."""
    if parts and not parts[0].is_complex():
        yield from _assembled(parts, shape)


def _spec_value(trial: Trial, node: torch.fx.Node, *, floating: bool = True) -> torch.Tensor | None:
    try:
        value = trial.reference.value(node)[0]
    except EvaluationError:
        return None
    if not isinstance(value, torch.Tensor) or value.is_complex():
        return None
    return value if value.is_floating_point() or not floating else None


def _wholes(values: Interpreter, program: Program, node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """The tensors that the ranks' values of a node may be: all the same, or shards of one dimension per mesh axis."""
    try:
        parts = [part for part in values.value(node) if isinstance(part, torch.Tensor)]
    except EvaluationError:
        return
    shape = program.mesh.shape if program.mesh is not None else ()
    if not parts or not parts[0].is_floating_point() or len(parts) != max(values.ranks, 1):
        return
    yield from _assembled(parts, shape)


def _assembled(parts: Sequence[torch.Tensor], shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    dims = range(parts[0].dim())
    layouts: list[tuple[Replicate | Shard, ...]] = [()]
    for size in shape:
        kinds: list[Replicate | Shard] = [Replicate(), *(Shard(dim) for dim in dims)] if size > 1 else [Replicate()]
        layouts = [(*layout, kind) for layout in layouts for kind in kinds]
    for layout in layouts:
        try:
            wholes = assemble(parts, shape, layout)
        except EvaluationError:
            continue
        if all(other is wholes[0] or _same(other, wholes[0]) for other in wholes[1:]):
            yield wholes[0]


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(torch.allclose(first, second, rtol=_TOLERANCE, atol=_TOLERANCE))


class _Marks:
    """Tensors that are looked up by their numbers."""

    def __init__(self, values: Iterable[torch.Tensor]) -> None:
        self._found: dict[tuple[int, ...], list[tuple[float, int, torch.Tensor]]] = {}
        for number, value in enumerate(values):
            self._found.setdefault(tuple(value.shape), []).append((_mark(value), number, value))

    def hold(self, value: torch.Tensor) -> bool:
        return next(self.found(value), None) is not None

    def found(self, value: torch.Tensor) -> Iterator[int]:
        """The places of the tensors that are equal to one."""
        listed = self._found.get(tuple(value.shape))
        if listed is None:
            return
        mark = _mark(value)
        near = _TOLERANCE * max(abs(mark), 1.0) * 10
        yield from (number for other, number, own in listed if abs(other - mark) <= near and _same(own, value))


def _mark(value: torch.Tensor) -> float:
    """A sum in which no two elements count the same."""
    flat = value.detach().double().flatten()
    return float((flat * torch.arange(1, flat.numel() + 1, dtype=torch.float64).sin()).sum())
