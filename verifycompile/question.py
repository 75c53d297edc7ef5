"""What a report answers: against which spec, for which ranks, and how each of the two is known."""

from __future__ import annotations

import dataclasses
import enum


class Provenance(enum.Enum):
    """How a part of the question is known, the surest first."""

    GIVEN = "given"
    """The user said it."""
    RECORDED = "recorded"
    """It was written down when the model was constructed."""
    OBSERVED = "observed"
    """Every rank was asked: the ranks of the job, or the models that ``build`` made for them."""
    READ = "read"
    """It was read from the model as it stands."""
    ASSUMED = "assumed"
    """Nobody said or saw it; the report lists it."""


_SPEC = {
    Provenance.GIVEN: "spec given",
    Provenance.RECORDED: "spec recovered with the numbers recorded at construction",
    Provenance.READ: "spec recovered from the model as it stands",
}


@dataclasses.dataclass(frozen=True)
class Question:
    """``spec``: GIVEN, RECORDED or READ. ``ranks``: GIVEN (a graph each), OBSERVED or ASSUMED; ``count`` of them.

    ``job``: the ranks of the job in which it is asked; 0 where there is none. The report speaks of none of the others.
    """

    spec: Provenance = Provenance.READ
    ranks: Provenance = Provenance.ASSUMED
    count: int = 1
    job: int = 0

    def describe(self) -> str:
        """One line for a report."""
        ranks = "1 rank" if self.count == 1 else f"{self.count} ranks"
        if self.job > self.count:
            ranks = f"{ranks} of the job's {self.job}"
        held = {
            Provenance.GIVEN: f"{ranks} given",
            Provenance.OBSERVED: f"{ranks} compared",
        }.get(self.ranks, f"{ranks} assumed to run what this process captured")
        return f"{_SPEC.get(self.spec, 'spec assumed')}; {held}"
