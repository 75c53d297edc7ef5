"""Parts of both programs that are proved once: a part equal to an earlier one up to renaming takes over its result.

A *part* is a stretch of the spec's nodes and a stretch of the implementation's. Its boundary values are views of
opaque terms (``definitions.py``), so what is proved of one part holds for every part with the same key. The key says
all that lowering can see: the forms of the nodes (arguments, shapes, dtypes, memory), which operand is which, and every
boundary value up to the names of the opaque terms.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.size import Size
from verifycompile.ir.term import Term, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import ProgramOutput
from verifycompile.refinement.definitions import (
    CONSTANTS,
    DEFINED,
    DEFINED_INDICATOR,
    OPAQUE,
    Definitions,
    is_real,
    moved,
    renamed,
)
from verifycompile.refinement.placement import Placements
from verifycompile.refinement.reading import Reading
from verifycompile.refinement.result import PartEnd
from verifycompile.refinement.stages import Stopwatch
from verifycompile.rewrites.registry import Group
from verifycompile.rewrites.values import Piece, Pieces


class NotRepeatedError(Exception):
    """The programs cannot be proved part by part; nothing is known about them as a whole."""


FAMILIAR = CONSTANTS | {DEFINED, DEFINED_INDICATOR}

_OF_NO_OUTPUT = ("node", "name", "index", "declared")
"""Fields of an output that say which one it is, not what it must be."""

OutputPair = tuple[ProgramOutput, ProgramOutput]
Relate = Callable[[ProgramOutput, ProgramOutput], Placements | None]
"""Relate one output of both programs; the placements found, or None."""


@dataclasses.dataclass
class Side:
    """One of the two programs while it is lowered part by part. ``done``: nodes lowered so far, ``cut``: nodes whose
    values have been named where later nodes take them.
    """

    lowering: Lowering
    reading: Reading
    outputs: Mapping[torch.fx.Node, Sequence[int]]
    """Output nodes, and the pairs of outputs to which each belongs."""
    done: int = 0
    cut: int = 0
    originals: dict[torch.fx.Node, Any] = dataclasses.field(default_factory=dict[torch.fx.Node, Any])
    """What a node was lowered to, where its value has been named."""

    def lower_to(self, position: int) -> None:
        """Lower the nodes before ``position``."""
        self.lowering.lower(self.reading.nodes[self.done : position])
        self.done = max(self.done, position)

    def back_to(self, position: int) -> None:
        """Forget the nodes from ``position`` on."""
        for node in self.reading.nodes[position : self.done]:
            self.lowering.values.pop(node, None)
        self.done = position


@dataclasses.dataclass(frozen=True)
class Part:
    """Positions of the nodes of one part."""

    spec: range
    implementation: range


@dataclasses.dataclass(frozen=True)
class _Export:
    """A value that later nodes take: as it is, or a view of an opaque term of the boundary or of the part."""

    side: int
    node: int
    value: Any
    term: int | None = None
    """Number of the opaque term among those of the boundary, then those of the part."""


@dataclasses.dataclass(frozen=True)
class _Result:
    """What was proved of a part."""

    exports: tuple[_Export, ...]
    opaque: tuple[tuple[tuple[Size, ...], bool], ...]
    """The part's own opaque terms: shape, and whether an indicator."""
    placements: tuple[Placements, ...]
    related: int
    unrelated: int
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Repetition:
    """A part of both programs that was proved by renaming: its nodes stand for those of an earlier part, in order.

    ``spec_nodes``: how many of the nodes, the first ones, are the spec's.
    """

    nodes: tuple[str, ...]
    of: tuple[str, ...]
    spec_nodes: int


@dataclasses.dataclass(frozen=True)
class _Key:
    content: Hashable
    boundary: tuple[Term, ...]
    """The opaque terms of the boundary, in the order of their numbers."""
    exports: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]


class Memo:
    """Results of parts, by key. ``relate`` relates a pair of outputs, ``note`` records a relation found earlier."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        outputs: Sequence[OutputPair],
        relate: Relate,
        note: Callable[[ProgramOutput, Placements], None],
    ) -> None:
        self.sides = sides
        self.pool = sides[0].lowering.pool
        self.definitions = Definitions(self.pool)
        self.repetitions: list[Repetition] = []
        self.settled: set[int] = set()
        """Pairs of outputs that were related within a part."""
        self.related = self.unrelated = 0
        self._taken_over: list[tuple[Side, torch.fx.Node]] = []
        self._real: set[Term] = set()
        self._outputs, self._relate, self._note = outputs, relate, note
        self._results: dict[Hashable, _Result] = {}
        self.stopwatch = Stopwatch()
        self.ends: list[PartEnd] = []
        """Where parts end, in order."""

    def add(self, part: Part) -> None:
        """Prove a part, or take over the result of an equal one. Raises NotRepeatedError."""
        started = time.perf_counter()
        key = self._key(part)
        known = None if key is None else self._results.get(key.content)
        nodes, read = len(part.spec) + len(part.implementation), time.perf_counter()
        self.stopwatch.add("reading", read - started, nodes)
        if key is None or known is None:
            self._prove(part, key)
        else:
            self._take_over(part, key, known)
            self.stopwatch.add("memo", time.perf_counter() - read, nodes)
        alike = known is not None or (key is not None and key.content in self._results)
        self.ends.append(PartEnd(part.spec.stop, part.implementation.stop, alike))
        for side, positions in zip(self.sides, (part.spec, part.implementation), strict=True):
            side.done = side.cut = positions.stop

    def require_outputs(self) -> None:
        """Raise NotRepeatedError where outputs that were computed by now have no relation: nothing is proved then."""
        spec, implementation = (side.lowering.values for side in self.sides)
        for number, (left, right) in enumerate(self._outputs):
            is_computed = left.node in spec and right.node in implementation
            if is_computed and number not in self.settled and self._relate(left, right) is None:
                raise NotRepeatedError

    def note_inputs(self) -> None:
        """Learn which opaque terms are inputs of real numbers, of those inputs that have a value by now."""
        for side in self.sides:
            for node in side.reading.given:
                value = side.lowering.values.get(node)
                if isinstance(value, View) and is_real(node):
                    self._real.add(value.term)

    def output_positions(self) -> Iterator[tuple[int, int]]:
        """Where both halves of each pair of outputs are computed; -1 for what is no computation."""
        spec, implementation = (side.reading.position for side in self.sides)
        for left, right in self._outputs:
            yield spec.get(left.node, -1), implementation.get(right.node, -1)

    def restore(self) -> None:
        """Leave in both programs the values of the nodes that were lowered, by what they were lowered to."""
        for side, node in self._taken_over:
            side.lowering.values.pop(node, None)
        for side in self.sides:
            side.lowering.values.update(side.originals)

    # -- the key

    def _key(self, part: Part) -> _Key | None:
        """None for a part that depends on more than its boundary."""
        numbers: dict[Term, int] = {}
        content: list[Hashable] = []
        exports: list[tuple[int, int]] = []
        outputs: list[int] = []
        for number, (side, positions) in enumerate(zip(self.sides, (part.spec, part.implementation), strict=True)):
            reading, values = side.reading, side.lowering.values
            boundary: dict[torch.fx.Node, int] = {}
            begin, end = positions.start, positions.stop
            position_of, last_use = reading.position, reading.last_use
            content.append(len(positions))
            for position in positions:
                content.append(reading.forms[position])
                for operand in reading.operands[position]:
                    place = position_of.get(operand, -1)
                    if place >= begin:
                        content.append(place - begin)
                        continue
                    index = boundary.get(operand)
                    if index is None:
                        index = boundary[operand] = -1 - len(boundary)
                        if operand not in values:
                            raise NotRepeatedError
                        content.extend((index, self._describe(values[operand], reading, numbers)))
                    else:
                        content.append(index)
                node = reading.nodes[position]
                handed_on = last_use.get(node, -1) >= end
                if node in side.outputs:
                    settled = self._settled_by(side, node, part)
                    if number == 0:
                        outputs.extend(settled)
                    handed_on |= len(settled) < len(side.outputs[node])
                if handed_on:
                    exports.append((number, position - begin))
            if not reading.random.isdisjoint(reading.forms[begin:end]):
                return None
        content.append(tuple(exports))
        content.append(tuple(self._describe_output(part, pair) for pair in outputs))
        return _Key(tuple(content), tuple(numbers), tuple(exports), tuple(outputs))

    def _settled_by(self, side: Side, node: torch.fx.Node, part: Part) -> list[int]:
        """The pairs of outputs of which ``node`` is one half and whose other half is in the same part."""
        pairs = side.outputs[node]
        spec, implementation = (side.reading.position for side in self.sides)
        return [
            p
            for p in pairs
            if spec.get(self._outputs[p][0].node, -1) in part.spec
            and implementation.get(self._outputs[p][1].node, -1) in part.implementation
        ]

    def _describe_output(self, part: Part, pair: int) -> Hashable:
        spec, implementation = self._outputs[pair]
        required = {f.name: getattr(implementation, f.name) for f in dataclasses.fields(implementation)}
        for name in _OF_NO_OUTPUT:
            del required[name]
        return (
            self.sides[0].reading.position[spec.node] - part.spec.start,
            self.sides[1].reading.position[implementation.node] - part.implementation.start,
            tuple(required.values()),
        )

    def _describe(self, value: Any, reading: Reading, numbers: dict[Term, int]) -> Hashable:
        """A boundary value up to the names of the opaque terms."""
        if isinstance(value, View):
            term = value.term
            if term.operation not in OPAQUE:
                return value.coefficient, term.id, value.shape, value.axes
            number = numbers.get(term)
            if number is not None:
                return value.coefficient, "opaque", number, value.shape, value.axes
            numbers[term] = number = len(numbers)
            return value.coefficient, "new", number, self._description(term), value.shape, value.axes
        if value is None:
            return None
        if isinstance(value, Group):
            return value
        if isinstance(value, sympy.Basic):
            return reading.named_alike(value)
        if isinstance(value, (bool, int, float)):
            return type(value), repr(value)
        if isinstance(value, (Piece, Pieces, tuple)):
            raise NotRepeatedError
        return "object", id(value)

    def _description(self, term: Term) -> Hashable:
        """All that a proof may use of an opaque term. An input of whole numbers may be used as an index as it is."""
        kind = "real" if term.operation is DEFINED or term in self._real else term.operation
        return kind, term.shape, tuple(self.pool.facts.get(term, ())), term in self.pool.squares

    # -- a new part

    def _prove(self, part: Part, key: _Key | None) -> None:
        sources, blocked = len(self.pool.sources), self._blocked()
        for side, positions in zip(self.sides, (part.spec, part.implementation), strict=True):
            side.lower_to(positions.stop)
        if self._blocked() > blocked:
            raise NotRepeatedError
        if key is None:
            self.name(part.spec.stop, part.implementation.stop, outputs=True)
            return
        placements = [self._relate_pair(pair) for pair in key.outputs]
        related, unrelated = self._count(part)
        numbers = {term: number for number, term in enumerate(key.boundary)}
        self.name(part.spec.stop, part.implementation.stop, outputs=True)
        exports, opaque = self._exports(part, key, numbers)
        # A term of another kind that came from nowhere may depend on more than the boundary.
        if exports is None or any(t.operation not in FAMILIAR for t in self.pool.sources[sources:]):
            return
        self._results[key.content] = _Result(exports, opaque, tuple(placements), related, unrelated, self._names(part))

    def _relate_pair(self, pair: int) -> Placements:
        placements = self._relate(*self._outputs[pair])
        if placements is None:
            raise NotRepeatedError
        self._settle(pair, placements)
        return placements

    def _settle(self, pair: int, placements: Placements) -> None:
        self._note(self._outputs[pair][0], placements)
        self.settled.add(pair)

    def _exports(
        self, part: Part, key: _Key, numbers: dict[Term, int]
    ) -> tuple[tuple[_Export, ...] | None, tuple[tuple[tuple[Size, ...], bool], ...]]:
        """The values that the part hands on; None where one of them is no view of an opaque term or a constant."""
        exports: list[_Export] = []
        opaque: list[tuple[tuple[Size, ...], bool]] = []
        starts = (part.spec.start, part.implementation.start)
        for number, node in key.exports:
            side = self.sides[number]
            value = side.lowering.values[side.reading.nodes[starts[number] + node]]
            if not isinstance(value, View) or self.definitions.is_closed(value.term):
                exports.append(_Export(number, node, value))
                continue
            term = value.term
            if term.operation not in OPAQUE:
                return None, ()
            if term not in numbers:
                numbers[term] = len(numbers)
                opaque.append((term.shape, term.operation.indicator))
            exports.append(_Export(number, node, value, numbers[term]))
        return tuple(exports), tuple(opaque)

    def _blocked(self) -> int:
        return sum(len(side.lowering.blockers) for side in self.sides)

    def _count(self, part: Part) -> tuple[int, int]:
        """How many values of the spec's part the implementation's part or its boundary holds, and how many not."""
        held: set[Term] = set()
        values = self.sides[1].lowering.values
        for position in part.implementation:
            for node in (self.sides[1].reading.nodes[position], *self.sides[1].reading.operands[position]):
                value = values.get(node)
                if isinstance(value, View):
                    held.add(value.term)
        found = [self.sides[0].lowering.values.get(self.sides[0].reading.nodes[p]) for p in part.spec]
        views = [v for v in found if isinstance(v, View)]
        related = sum(v.term in held for v in views)
        return related, len(views) - related

    def _names(self, part: Part) -> tuple[str, ...]:
        pairs = zip(self.sides, (part.spec, part.implementation), strict=True)
        return tuple([node.name for side, p in pairs for node in side.reading.nodes[p.start : p.stop]])

    # -- names for what is handed on

    def name(self, spec: int, implementation: int, *, outputs: bool = False) -> None:
        """Name the values of nodes before these positions, from the last cut on, that later nodes take.

        ``outputs``: those that are outputs of the program as well.
        """
        names: dict[Term, View] = {}
        for side, stop in zip(self.sides, (spec, implementation), strict=True):
            reading = side.reading
            for node in reading.nodes[side.cut : stop]:
                if reading.last_use.get(node, -1) >= stop or (outputs and node in side.outputs):
                    self._name_value(side, node, names)
            side.cut = stop

    def _name_value(self, side: Side, node: torch.fx.Node, names: dict[Term, View]) -> None:
        value = side.lowering.values.get(node)
        if isinstance(value, Piece):
            value = side.lowering.view(node)
        if not isinstance(value, View):
            if isinstance(value, (Pieces, tuple)):
                raise NotRepeatedError
            return
        term = value.term
        known = names.get(term)
        if known is None:
            if self.definitions.keeps(term, not is_real(node)):
                return
            known = names[term] = self.definitions.name(value)
        side.originals[node] = value
        try:
            side.lowering.values[node] = renamed(value, known)
        except UnalignedError:
            raise NotRepeatedError from None

    # -- a part equal to an earlier one

    def _take_over(self, part: Part, key: _Key, result: _Result) -> None:
        terms = list(key.boundary)
        terms.extend(self.definitions.fresh(shape, indicator) for shape, indicator in result.opaque)
        starts = (part.spec.start, part.implementation.start)
        for export in result.exports:
            side = self.sides[export.side]
            node = side.reading.nodes[starts[export.side] + export.node]
            value = export.value if export.term is None else moved(export.value, terms[export.term])
            side.lowering.values[node] = value
            self._taken_over.append((side, node))
        for pair, placements in zip(key.outputs, result.placements, strict=True):
            self._settle(pair, placements)
        self.related += result.related
        self.unrelated += result.unrelated
        self.repetitions.append(Repetition(self._names(part), result.names, part.spec.stop - part.spec.start))
