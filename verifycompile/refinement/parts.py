"""Both programs of one verification, lowered part by part where they repeat themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch.fx

from verifycompile.lowering.lower import Lowering
from verifycompile.program import OutputKind, ProgramOutput, Role
from verifycompile.refinement.layers import Layers
from verifycompile.refinement.memo import Memo, NotRepeatedError, OutputPair, Relate, Side
from verifycompile.refinement.placement import Placements
from verifycompile.refinement.reading import Forms, Reading
from verifycompile.refinement.result import PartsFound

_MIN_SAVED = 60
"""Nodes of the implementation that must repeat others before both programs are cut."""


class Parts:
    """Lowers the forward and the backward phase of both programs. The nodes before the first that takes a cotangent
    are the forward phase.
    """

    def __init__(
        self,
        spec: Lowering,
        implementation: Lowering,
        outputs: Sequence[OutputPair],
        relate: Relate,
        note: Callable[[ProgramOutput, Placements], None],
    ) -> None:
        started = time.perf_counter()
        forms = Forms()
        sides = tuple(
            Side(lowering, Reading(lowering, [pair[k].node for pair in outputs], forms), _by_node(outputs, k))
            for k, lowering in enumerate((spec, implementation))
        )
        self.sides = sides[0], sides[1]
        self._numbers = {pair[0].name: number for number, pair in enumerate(outputs)}
        self.memo = Memo(self.sides, outputs, relate, note)
        splits = [_forward_length(side, [pair[k] for pair in outputs]) for k, side in enumerate(self.sides)]
        lengths = [len(side.reading.nodes) for side in self.sides]
        self.forward = Layers(self.memo, range(splits[0]), range(splits[1]))
        self.backward = Layers(self.memo, range(splits[0], lengths[0]), range(splits[1], lengths[1]))
        self.memo.stopwatch.add("reading", time.perf_counter() - started, sum(lengths))

    def require_repetitions(self) -> None:
        """Raise NotRepeatedError where there are too few to be worth it."""
        if self.forward.saved + self.backward.saved < _MIN_SAVED:
            raise NotRepeatedError

    def lower_given(self) -> None:
        """Lower constants and sizes: everything that is no computation and no tensor input."""
        for side in self.sides:
            inputs = {p.node for p in side.lowering.program.inputs if p.role is not Role.SIZE}
            side.lowering.lower(node for node in side.reading.given if node not in inputs)

    def found(self) -> PartsFound:
        """Where both programs were cut."""
        spec, implementation = (tuple(side.reading.nodes) for side in self.sides)
        length, other = (r.stop for r in self.forward.ranges)
        forward = tuple(end for end in self.memo.ends if end.spec <= length and end.implementation <= other)
        return PartsFound(spec, implementation, forward, tuple(self.memo.ends[len(forward) :]))

    def is_settled(self, spec: ProgramOutput) -> bool:
        """Whether an output was related within a part."""
        return self._numbers[spec.name] in self.memo.settled


def _by_node(outputs: Sequence[OutputPair], side: int) -> dict[torch.fx.Node, list[int]]:
    found: dict[torch.fx.Node, list[int]] = {}
    for number, pair in enumerate(outputs):
        found.setdefault(pair[side].node, []).append(number)
    return found


def _forward_length(side: Side, outputs: Sequence[ProgramOutput]) -> int:
    """The number of nodes before the first that takes a cotangent, and at least up to the last forward output."""
    position = side.reading.position
    tangents = [p.node for p in side.lowering.program.inputs if p.role is Role.TANGENT]
    users = [position[user] for node in tangents for user in node.users if user in position]
    last = max((position.get(o.node, -1) for o in outputs if o.kind is not OutputKind.GRADIENT), default=-1)
    return max(min(users, default=len(side.reading.nodes)), last + 1)
