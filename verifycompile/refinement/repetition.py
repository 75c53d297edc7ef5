"""Where a sequence of nodes repeats itself, and where it is best cut.

This only says where to look: nothing rests on it, because what is lowered once is compared in full wherever it is
used again (``refinement/memo.py``).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Sequence

_MIN_PERIOD = 6
"""Shorter repetitions cost less to lower than to compare."""

_MAX_CANDIDATES = 6


@dataclasses.dataclass(frozen=True)
class Run:
    """``nodes[start:stop]`` repeats itself every ``period`` nodes."""

    start: int
    stop: int
    period: int

    @property
    def saved(self) -> int:
        """Nodes that need not be lowered."""
        return self.stop - self.start - self.period


def find_runs(forms: Sequence[int]) -> list[Run]:
    """Stretches of at least two equal parts, longest first where they overlap, returned in order."""
    found: list[Run] = []
    for period in _periods(forms):
        same = map(operator.eq, forms, itertools.islice(forms, period, None))
        position = 0
        for equal, members in itertools.groupby(same):
            length = sum(1 for _ in members)
            if equal and length >= period:
                found.append(Run(position, position + length + period, period))
            position += length
    chosen: list[Run] = []
    for run in sorted(found, key=lambda r: (-r.saved, r.period)):
        if all(run.stop <= other.start or other.stop <= run.start for other in chosen):
            chosen.append(run)
    return sorted(chosen, key=lambda r: r.start)


def _periods(forms: Sequence[int]) -> list[int]:
    """Distances at which forms recur regularly, those that most nodes agree on first."""
    places: dict[int, list[int]] = {}
    for position, form in enumerate(forms):
        places.setdefault(form, []).append(position)
    votes: collections.Counter[int] = collections.Counter()
    for positions in places.values():
        distances = collections.Counter(map(operator.sub, positions[1:], positions))
        for distance, count in distances.most_common(1):
            if 2 * count >= len(positions) - 1:
                votes[distance] += count
    return [d for d, _ in votes.most_common(_MAX_CANDIDATES) if d >= _MIN_PERIOD]


def best_cuts(run: Run, takes: Sequence[Sequence[int]]) -> list[int]:
    """Offsets within the period at which the fewest values are handed on inside of the run.

    ``takes``: per node the positions of its operands, negative for those from elsewhere.
    """
    first = run.start + run.period
    stop = min(run.stop, first + 2 * run.period)
    last_use: dict[int, int] = {}
    for position in range(run.start, stop):
        for operand in takes[position]:
            if operand >= run.start:
                last_use[operand] = position
    change = [0] * (run.period + 1)
    for position, end in last_use.items():
        begin = max(position + 1, first)
        if end >= begin and begin < first + run.period:
            change[begin - first] += 1
            change[min(end + 1 - first, run.period)] -= 1
    crossing = list(itertools.accumulate(change[: run.period]))
    least = min(crossing)
    return [offset for offset, number in enumerate(crossing) if number == least]
