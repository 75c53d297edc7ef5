"""Programs that repeat themselves: cut between the repetitions, so that each distinct part is proved once, and none
from more than what the part before hands on.

Both programs are read as sequences of forms, repetitions are looked for in each, and the places to cut are those at
which few values are handed on and both programs hand on the same ones. All of this is guessing; what is proved does
not depend on it. Where a guess does not fit, the nodes are lowered one by one as ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch.fx

from verifycompile.ir.term import Term, View
from verifycompile.refinement.memo import Memo, Part, Side
from verifycompile.refinement.repetition import Run, best_cuts, find_runs
from verifycompile.refinement.result import PartEnd

_MIN_PARTS = 2
_MIN_SAVED = 40
"""Nodes of the implementation; for fewer it does not pay to cut."""
_MAX_CUTS = 40


def shifted(run: Run, by: int) -> Run:
    return Run(run.start + by, run.stop + by, run.period)


def shifted_to(run: Run, start: int) -> range:
    """The positions of one repetition, from ``start`` on."""
    return range(start, start + run.period)


def _operators(side: Side, positions: range) -> list[int]:
    """What layers of different sizes or constants have in common. Each is proved, from values that have names."""
    return [id(node.target) for node in side.reading.nodes[positions.start : positions.stop]]


def _count(run: Run) -> int:
    return (run.stop - run.start) // run.period


def _are_but_one(run: Run, before: Run, behind: Run) -> bool:
    """Whether two runs have as many repetitions as one, but for a layer or two between them."""
    return 0 <= _count(run) - _count(before) - _count(behind) <= _MIN_PARTS


class Layers:
    """The repetitions of both programs in one phase (forward or backward)."""

    def __init__(self, memo: Memo, spec: range, implementation: range) -> None:
        self.memo = memo
        self.sides = memo.sides
        self.ranges = (spec, implementation)
        self.runs = self._runs(lambda side, r: side.reading.forms[r.start : r.stop])
        if 2 * self.saved < len(implementation):
            repeated, saved = self.runs, self.saved
            self.runs = self._runs(_operators)
            if self.saved < 2 * saved:
                self.runs = repeated

    def _runs(self, forms: Callable[[Side, range], Sequence[int]]) -> list[list[Run]]:
        return [
            [shifted(run, r.start) for run in find_runs(forms(side, r))]
            for side, r in zip(self.sides, self.ranges, strict=True)
        ]

    @property
    def saved(self) -> int:
        """Nodes of the implementation that repeat others, or the operators of others."""
        return sum(run.saved for run in self.runs[1]) if self.runs[0] else 0

    def lower(self) -> None:
        """Lower all nodes of the phase that outputs need. Raises NotRepeatedError."""
        self.memo.note_inputs()
        for spec, implementation in self._pairs():
            cut = self._cut(spec, implementation)
            if cut is None:
                self.memo.require_outputs()
            else:
                self._add_parts(spec, implementation, *cut)
        for side, r in zip(self.sides, self.ranges, strict=True):
            side.lower_to(r.stop)

    def _pairs(self) -> list[tuple[Run, Run]]:
        """Runs of both programs that may be the same one: in order, and of about as many repetitions.

        Where one layer of a program differs from all others, its run ends there, and another one begins behind.
        """
        pairs: list[tuple[Run, Run]] = []
        rest = [run for run in self.runs[1] if run.saved >= _MIN_SAVED]
        for run in self.runs[0]:
            for position, other in enumerate(rest):
                if abs(_count(other) - _count(run)) <= 1:
                    pairs.append((run, other))
                    rest = rest[position + 1 :]
                    break
                behind = rest[position + 1] if position + 1 < len(rest) else None
                if behind is not None and behind.period == other.period and _are_but_one(run, other, behind):
                    pairs.append((Run(run.start, run.start + _count(other) * run.period, run.period), other))
                    pairs.append((Run(run.stop - _count(behind) * run.period, run.stop, run.period), behind))
                    rest = rest[position + 2 :]
                    break
        return pairs

    def _add_parts(self, spec: Run, implementation: Run, first: int, second: int) -> None:
        count = min((spec.stop - first) // spec.period, (implementation.stop - second) // implementation.period)
        if count < _MIN_PARTS:
            return
        for side, position in zip(self.sides, (first, second), strict=True):
            side.back_to(position)
        self.memo.name(first, second)
        self.memo.ends.append(PartEnd(first, second, alike=False))
        for _ in range(count):
            part = Part(range(first, first + spec.period), range(second, second + implementation.period))
            self.memo.add(part)
            first, second = part.spec.stop, part.implementation.stop

    # -- where to cut

    def _cut(self, spec: Run, implementation: Run) -> tuple[int, int] | None:
        """The first positions before which both programs hand on the same values to the next repetition.

        Where there are several, those between which both programs compute the same outputs.
        """
        if spec.start < self.sides[0].done or implementation.start < self.sides[1].done:
            return None
        runs = (spec, implementation)
        offsets = [best_cuts(run, self._takes(side, run)) for side, run in zip(self.sides, runs, strict=True)]
        candidates = [
            [run.start + k * run.period + offset for k in (0, 1) for offset in cuts]
            for run, cuts in zip(runs, offsets, strict=True)
        ]
        # Nearest first: what is lowered to look at a place further on is lowered in vain.
        pairs = sorted(itertools.product(*candidates), key=sum)
        handed_on: list[dict[int, set[Term]]] = [{}, {}]
        fits: tuple[int, int] | None = None
        for pair in pairs[:_MAX_CUTS]:
            for side, run, position, known in zip(self.sides, runs, pair, handed_on, strict=True):
                if position not in known:
                    side.lower_to(position)
                    known[position] = self._handed_on(side, run, position)
            first, second = pair
            if handed_on[1][second] and handed_on[1][second] <= handed_on[0][first]:
                if self._outputs_meet(shifted_to(spec, first), shifted_to(implementation, second)):
                    return first, second
                fits = fits or (first, second)
        return fits

    def _outputs_meet(self, spec: range, implementation: range) -> bool:
        """Whether each output that one of two parts has is one of the other part as well."""
        return all((p in spec) == (q in implementation) for p, q in self.memo.output_positions())

    @staticmethod
    def _takes(side: Side, run: Run) -> Sequence[Sequence[int]]:
        position = side.reading.position
        operands = side.reading.operands
        stop = min(run.stop, run.start + 3 * run.period)
        near = [[position.get(o, -1) for o in operands[k]] for k in range(run.start, stop)]
        return [*[()] * run.start, *near]

    def _handed_on(self, side: Side, run: Run, cut: int) -> set[Term]:
        """Terms of the values from before ``cut`` that the next repetition takes, as far as they would be named."""
        reading, values = side.reading, side.lowering.values
        seen: set[torch.fx.Node] = set()
        terms: set[Term] = set()
        for position in range(cut, min(cut + run.period, run.stop)):
            for operand in reading.operands[position]:
                if operand in seen or not -1 < reading.position.get(operand, -1) < cut:
                    continue
                seen.add(operand)
                value = values.get(operand)
                if isinstance(value, View) and not self.memo.definitions.keeps(value.term, exact=False):
                    terms.add(value.term)
        return terms
