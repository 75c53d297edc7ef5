"""Findings that rest on no comparison of a run: what the ranks hold before it, and why there is none."""

from __future__ import annotations

import dataclasses

from verifycompile.comparison.inputs import Inputs
from verifycompile.comparison.parameters import Parameters
from verifycompile.comparison.ranks import RankFailedError
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict


def unequal_replicas(parameters: Parameters, inputs: Inputs) -> list[Finding]:
    """Findings on what the ranks hold before anything is run."""
    found = [
        Finding(
            code="VC121",
            severity=Severity.ERROR,
            message=f"parameter `{name}` should be the same on all ranks that hold it, and rank "
            f"{', '.join(map(str, others))} holds other values before the program runs",
            output=name,
            verdict=Verdict.REFUTED,
        )
        for name, others in parameters.differ.items()
    ]
    for name in inputs.differ:
        message = f"input `{name}` differs between ranks that are taken to have the same one: give `in_placements`"
        found.append(Finding(code="VC213", severity=Severity.ERROR, message=message, output=name))
    return found


def one_object(asked: tuple[str, ...], wrapped: bool) -> Finding | None:
    """Why one process's model cannot stand for those of the other ranks."""
    if not asked and not wrapped:
        return None
    why = f"the program asked for its rank: {', '.join(asked[:3])}" if asked else "a data-parallel wrapper keeps state"
    message = (
        f"{why}. This process alone stands for all ranks, whose models may hold other numbers. Pass the option "
        "`build`, a callable without arguments that makes the model: it is called once for each rank."
    )
    return Finding(code="VC207", severity=Severity.ERROR, message=message)


def failed(error: RankFailedError) -> Finding:
    """The program raised an error, or did not end."""
    where = "" if error.rank is None else f" on rank {error.rank}"
    ended = "does not end" if error.failure.waited else "raises an error"
    message = f"the parallel program {ended}{where}: {error}"
    return Finding(code="VC214", severity=Severity.ERROR, message=message, impl_location=error.failure.place)


def undecided(finding: Finding) -> Finding:
    return dataclasses.replace(finding, verdict=Verdict.UNPROVED, severity=Severity.WARNING)
