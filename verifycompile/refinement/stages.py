"""What each stage of a verification cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class StageCost:
    """``seconds`` in all, over ``count`` nodes of both programs or questions for ring, e-graph and solver.

    ``median`` and ``percentile_95``: milliseconds of one of them.
    """

    seconds: float = 0.0
    count: int = 0
    median: float = 0.0
    percentile_95: float = 0.0

    @staticmethod
    def of(seconds: Sequence[float]) -> StageCost:
        """The cost of a stage from the seconds of each node or question."""
        if not seconds:
            return StageCost()
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return StageCost(
            sum(ordered), len(ordered), 1000 * ordered[last // 2], 1000 * ordered[min(last, round(0.95 * last))]
        )


STAGES = ("reading", "memo", "normal_form", "ring", "egraph", "solver")


@dataclasses.dataclass
class Stopwatch:
    """Seconds of single nodes and questions, by stage."""

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {stage: [] for stage in STAGES})

    def add(self, stage: str, seconds: float, nodes: int = 1) -> None:
        """``nodes`` nodes that cost ``seconds`` together."""
        if nodes:
            self.seconds[stage].extend([seconds / nodes] * nodes)

    def costs(self) -> Mapping[str, StageCost]:
        """The cost of every stage."""
        return {stage: StageCost.of(values) for stage, values in self.seconds.items()}
