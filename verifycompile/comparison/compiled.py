"""The program as it is compiled: what it ends with, compared once nothing is off as Python runs it.

Hooks on modules would be compiled with them, so that none is there: what runs is what the user runs.
"""

from __future__ import annotations

import dataclasses

from verifycompile.comparison.differences import FINAL, Comparing, Differences
from verifycompile.comparison.early import failed
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.localize import Places, message_of
from verifycompile.comparison.passes import run
from verifycompile.comparison.ranks import RankFailedError
from verifycompile.comparison.worker import Training
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict

_NOTES = (
    "run uncompiled, the program agrees with the spec in every tensor: its compiler made something else of it",
    'which compiler does so is found with others: `backend="eager"`, then `"aot_eager"`, then `"inductor"`',
)


def as_compiled(comparing: Comparing, places: Places, training: Training, *, batches: int, seed: int) -> list[Finding]:
    """A finding on the first result that is off; what was compared is added to ``comparing`` under ``compiled.``."""
    compiled = dataclasses.replace(comparing, found=Differences())
    compiled.ranks.call("compile")
    try:
        run(compiled, training, batches=batches, seed=seed)
    except RankFailedError as error:
        return [failed(error)]
    results = [item for item in compiled.found.judged if item.kind in FINAL]
    comparing.found.judged += [dataclasses.replace(item, name=f"compiled.{item.name}") for item in results]
    beyond = [item for item in results if item.exceeds]
    findings = [_finding(beyond[0], places, followers=len(beyond) - 1)] if beyond else []
    for name, kind, why in compiled.found.missing:
        if kind in FINAL:
            comparing.found.missing.append((f"compiled.{name}", kind, why))
    return findings


def _finding(item: Judged, places: Places, *, followers: int) -> Finding:
    location, labels = places.of(item.module)
    return Finding(
        code="VC120",
        severity=Severity.ERROR,
        message=f"compiled, {message_of(item)}",
        impl_location=location,
        labels=labels,
        notes=_NOTES,
        output=item.name,
        verdict=Verdict.REFUTED,
        followers=followers,
    )
