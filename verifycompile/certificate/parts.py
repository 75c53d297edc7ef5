"""Both programs cut into parts: each is lowered for any values at its boundary, so parts that are alike, once.

A certificate says after how many calls of each program a part ends. What goes into a part is named by the part's own
terms, in the order in which it takes them: a term that is known by nothing but its operation and its shape stands for
every value of this kind, and what is proved of it holds for the value at hand. What leaves a part is named again, by a
term of the program. So the calls of two layers that are alike have the very same operands, and a call that is like an
earlier one (by the certificate: both are made of one description), of the same operands, has its value. So have calls
in a row that are like earlier ones.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch.fx

from verifycompile.certificate.digests import Digests
from verifycompile.certificate.storage import Block, StorageError, StoredModule
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import is_size, whole_split
from verifycompile.refinement.definitions import CONSTANTS, OPAQUE, Definitions, is_real, moved, renamed
from verifycompile.rewrites.registry import Group
from verifycompile.rewrites.values import Piece
from verifycompile.torch_interface.operators.schema import draws_random_numbers
from verifycompile.walks import reached

_OF_A_PART = "of a part"


class PartError(StorageError):
    """A part that depends on more than the values at its boundary."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a part ends: after so many calls of each program. ``alike``: it is lowered for any values at its boundary,
    else for those that the programs have there.
    """

    spec: int
    implementation: int
    alike: bool


@dataclasses.dataclass(frozen=True)
class Cuts:
    """The parts of the forward and of the backward phase, in order."""

    forward: tuple[Cut, ...] = ()
    backward: tuple[Cut, ...] = ()


NO_CUTS = Cuts()


class Side:
    """One of the programs. ``done``: how many of its blocks of calls are lowered."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.blocks = cast("StoredModule", lowering.program.graph).blocks
        self.done = 0
        self.repeated: set[torch.fx.Node] = set()
        """Calls that were not lowered themselves."""
        self._known: dict[Hashable, Sequence[Any]] = {}
        self._closed: dict[Hashable, bool] = {}
        self.last_use = {node: position for position, block in enumerate(self.blocks) for node in _taken(block)}
        counts = itertools.accumulate((len(block.sources) for block in self.blocks), initial=0)
        self.places = {count: position for position, count in enumerate(counts)}
        """After how many calls how many blocks end."""
        self._block_of = {node: block for block in self.blocks for node in block.made.values()}

    def separate(self, wanted: torch.fx.Node) -> None:
        """Read each call by itself that is needed for ``wanted`` and has no value."""

        def needed(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
            if node in self.lowering.values:
                return ()
            if node in self._block_of:
                _ = self._block_of[node].singles
            return node.all_input_nodes

        reached([wanted], needed)

    def lower(self, block: Block) -> None:
        """Give calls their values, those of earlier ones where they are like those and take the same values."""
        values = self.lowering.values
        if not values.keys().isdisjoint(block.made.values()):
            self.lowering.lower([single.call for single in block.singles])
            return
        key = self._key(block)
        known = None if key is None else self._known.get(key)
        if known is not None:
            values.update((node, known[place]) for place, node in block.made.items())
            self.repeated.update(block.made.values())
            return
        if len(block.sources) == 1:
            self.lowering.lower([block.call])
        else:
            for single in block.singles:
                self.lower(single)
        self._known[key] = [values[single.call] for single in block.singles]

    def _key(self, block: Block) -> Hashable:
        """All that the values of calls depend on; None where that is more than their description and what they take.

        What is recorded of an operand is part of it: two values that are equal may be of several dtypes.
        """
        if block.pattern not in self._closed:
            self._closed[block.pattern] = not any(
                is_size(n) or draws_random_numbers(n.target, n.args, n.kwargs) for n in (s.call for s in block.sources)
            )
        if not self._closed[block.pattern]:
            return None
        values = self.lowering.values
        taken = tuple((id(n.meta.get("val")), *_told_apart(values[n])) for n in block.operands)
        key = block.pattern, taken
        try:
            hash(key)
        except TypeError:
            return None
        return key


def _told_apart(value: Any) -> tuple[Hashable, ...]:
    """A value and its type: in Python ``1``, ``1.0`` and ``True`` are equal, so are ``0.0`` and ``-0.0``."""
    return type(value), repr(value) if isinstance(value, float) else value


def _taken(block: Block) -> list[torch.fx.Node]:
    """What calls take from elsewhere: their operands, and the split whose pieces the first one assembles."""
    split = whole_split(block.call) if len(block.sources) == 1 else None
    return [*block.operands] if split is None else [*block.operands, split]


class Parts:
    """Lowers both programs up to the places where parts end."""

    def __init__(self, spec: Side, implementation: Side, digests: Digests, definitions: Definitions) -> None:
        self.sides = spec, implementation
        self.pool = spec.lowering.pool
        self.values: tuple[list[Hashable], list[Hashable]] = ([], [])
        """Of each program what the calls within parts that were lowered were found to be, and by which lemmas."""
        self._definitions = definitions
        self._digests = digests

    def blocks_up_to(self, cut: Cut) -> tuple[Sequence[Block], Sequence[Block]]:
        """The calls of the next part. Raises PartError where it begins behind its end, or ends within a block."""
        found: list[Sequence[Block]] = []
        for side, stop in zip(self.sides, (cut.spec, cut.implementation), strict=True):
            if not side.done <= side.places.get(stop, -1):
                raise PartError("its parts are not in order")
            found.append(side.blocks[side.done : side.places[stop]])
        return found[0], found[1]

    def enter(self, cut: Cut) -> Part:
        """Lower the next part."""
        part = Part(self, cut, self.blocks_up_to(cut))
        sources, noted = len(self.pool.sources), dict(self.pool.noted)
        self.pool.taken.clear()  # what stands for values here stood for others in an earlier part
        for side, blocks, nodes in zip(self.sides, part.blocks, part.calls, strict=True):
            held = len(side.lowering.values)
            for block in blocks:
                side.lower(block)
            nodes += [node for block in blocks for _, node in sorted(block.made.items())]
            if any(node in side.lowering.blockers and not is_size(node) for node in nodes):
                raise PartError("a part holds a call that cannot be lowered")
            if part.alike and len(side.lowering.values) != held + len(nodes):
                raise PartError("a part takes what is not at its boundary")
        if any(t.operation not in CONSTANTS for t in self.pool.sources[sources:]):
            raise PartError("a part holds a value that comes from nowhere")
        # What is known of an index in one part need not hold for the value that stands there in another one.
        found = [term for term, facts in self.pool.noted.items() if noted.get(term) != facts]
        if part.alike and any(term.operands or term in part.stands_for for term in found):
            raise PartError("a part finds out about an index")
        return part

    def leave(self, part: Part, outputs: tuple[Collection[torch.fx.Node], Collection[torch.fx.Node]]) -> None:
        """Name what later calls take, and ``outputs``, and forget the rest."""
        names: dict[Term, View] = {}
        for number, (side, nodes) in enumerate(zip(self.sides, part.calls, strict=True)):
            stop = side.done + len(part.blocks[number])
            exported: dict[torch.fx.Node, Any] = {}
            for node in nodes:
                if node not in side.repeated:
                    self.values[number].append(self._described(side, node))
                if side.last_use.get(node, -1) >= stop or node in outputs[number]:
                    exported[node] = self._exported(part, side, node, names)
            for node in nodes:
                side.lowering.values.pop(node)
            side.lowering.values.update(exported)
            side.done = stop
        for (side, node), value in part.replaced.items():
            side.lowering.values[node] = value

    def _described(self, side: Side, node: torch.fx.Node) -> Hashable:
        lemmas = [name for name, _ in side.lowering.lemmas.get(node, ())]
        return node.name, self._digests.value(side.lowering.values[node]), lemmas

    def _exported(self, part: Part, side: Side, node: torch.fx.Node, names: dict[Term, View]) -> Any:
        value = side.lowering.values[node]
        if isinstance(value, Piece):
            value = side.lowering.view(node)
        if not isinstance(value, View):
            if value is None or isinstance(value, (Group, int, float)) or is_size(node):
                return value
            raise PartError(f"`{node.name}` is no tensor, and is taken by another part")
        term = value.term
        if term in part.stands_for:
            return moved(value, part.stands_for[term])
        if self._definitions.keeps(term, not is_real(node)):
            if part.alike and not self._definitions.is_closed(term):
                raise PartError(f"`{node.name}` cannot be named, and is taken by another part")
            return value
        if term not in names:
            names[term] = self._definitions.name(value)
        try:
            return renamed(value, names[term])
        except UnalignedError as error:
            raise PartError(f"`{node.name}` cannot be named, and is taken by another part") from error


class Part:
    """A part while it is lowered. ``stands_for``: its own terms, and those of the program that they stand for."""

    def __init__(self, parts: Parts, cut: Cut, blocks: tuple[Sequence[Block], Sequence[Block]]) -> None:
        self.blocks = blocks
        self.calls: tuple[list[torch.fx.Node], list[torch.fx.Node]] = ([], [])
        """Of both programs those that there are, once the part is lowered."""
        self.alike = cut.alike
        self.stands_for: dict[Term, Term] = {}
        self.replaced: dict[tuple[Side, torch.fx.Node], Any] = {}
        """Values at the boundary, as they are outside."""
        own: dict[Term, Term] = {}
        boundary = list(self._boundary(parts.sides))
        for side, node in boundary:
            side.lowering.lower([node])
        for side, node in boundary:
            value = side.lowering.values[node]
            if not self.alike or not isinstance(value, View) or value.term.operation not in OPAQUE:
                continue
            if value.term not in own:
                own[value.term] = term = _term_of_part(parts.pool, value.term, len(own))
                self.stands_for[term] = value.term
            self.replaced[side, node] = value
            side.lowering.values[node] = moved(value, own[value.term])

    def _boundary(self, sides: Sequence[Side]) -> Iterator[tuple[Side, torch.fx.Node]]:
        """What the calls take from elsewhere, in their order."""
        for side, blocks in zip(sides, self.blocks, strict=True):
            seen = {node for block in blocks for node in block.made.values()}
            for operand in (operand for block in blocks for operand in _taken(block)):
                if operand not in seen:
                    seen.add(operand)
                    yield side, operand


def _term_of_part(pool: TermPool, term: Term, number: int) -> Term:
    """A term of which is known what is known of ``term``: its operation and its shape."""
    return pool.intern(term.operation, (_OF_A_PART, number), (), term.index_sizes, term.free, 0, (), ())


# ------------------------------------------------------------------------------------------------ stored


def cuts_from_data(data: Mapping[str, Any]) -> Cuts:
    """The cuts of both phases."""
    if set(data) != {"forward", "backward"}:
        raise PartError("its parts are of other phases")
    forward, backward = (tuple(Cut(*cut) for cut in data[phase]) for phase in ("forward", "backward"))
    if any(type(c.spec) is not int or type(c.implementation) is not int for c in (*forward, *backward)):
        raise PartError("a part ends nowhere")
    return Cuts(forward, backward)
