"""What one process's objects say about the other ranks that it stands for, and what they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Program, SourceLocation
from verifycompile.question import Provenance
from verifycompile.torch_interface.ranks.acting_rank import is_pretended
from verifycompile.torch_interface.ranks.observation import Read, ReadKind, listed_places, reads

_ASKED = (
    "the program asked for its rank: {}. This process alone stands for all ranks, whose models may hold other numbers. "
    "Pass the option `build`, a callable without arguments that makes the model: it is called once for each rank."
)
_ASKED_BEFORE_A_STEP = (
    "the program asked for its rank: {}. This process alone stands for all ranks, whose steps may hold other numbers. "
    "Ask for the rank inside of the step alone, which is traced as each rank, or let the ranks of a job be compared by "
    "`verifycompile.compare`."
)
_KEPT = (
    "the program asked for its rank before `build` was called, or once for several calls of it: {}. What `build` makes "
    "as another rank may hold this rank's number. Ask for the rank anew in each call of `build`."
)


def with_rank_evidence(report: Report, implementation: Program, options: Options) -> Report:
    """The report, unproved where the objects of one rank may not be those of the ranks that it stands for.

    Where the ranks were neither compared nor built, and the user's code asked for its rank before, or in a program that
    is not proved while it was traced (and earlier questions may have been missed), nothing is proved or refuted. Nor
    where what ``build`` runs may hold an answer that was given before it was called.
    """
    mesh = implementation.mesh
    if mesh is None or len(mesh.ranks) == 1 or not is_pretended():
        return report
    if implementation.provenance is Provenance.OBSERVED:
        kept = [f"{read}, kept in {read.holder}" for read in implementation.asked]
        return _unproved(report, implementation.asked, _KEPT.format(listed_places(kept)), options) if kept else report
    if implementation.provenance is not Provenance.ASSUMED:
        return report
    own = tuple(read for read in reads(ReadKind.RANK) if not read.traced and not read.installed)
    asked = own if report.verdict is Verdict.VERIFIED else (*own, *implementation.asked)
    text = _ASKED_BEFORE_A_STEP if implementation.own is None else _ASKED
    message = text.format(listed_places(list(dict.fromkeys(map(str, asked)))))
    return _unproved(report, asked, message, options) if asked else report


def _difference(item: Finding) -> str:
    place = item.impl_location
    where = "" if place is None else f" at {Path(place.file).name}:{place.line}"
    found = "if all ranks held the objects of this one, the programs would differ"
    return f"{found}{where} ({item.code}: {item.message}); with the ranks' own objects that need not be so"


def _unproved(report: Report, asked: Sequence[Read], message: str, options: Options) -> Report:
    severity = Severity.WARNING if options.on_unproved == "warn" else Severity.ERROR
    finding = Finding(
        code="VC207",
        severity=severity,
        message=message,
        impl_location=SourceLocation(asked[0].file, asked[0].line, function=asked[0].function),
        label="the rank is read here",
    )
    # With the ranks' own objects none of these need be so: beside a program that may be right, no error and no help.
    differences = tuple(_difference(item) for item in report.findings if item.verdict is Verdict.REFUTED)
    finding = dataclasses.replace(finding, notes=differences)
    others = tuple(
        dataclasses.replace(item, severity=severity) for item in report.findings if item.verdict is not Verdict.REFUTED
    )
    return dataclasses.replace(report, verdict=Verdict.UNPROVED, findings=(finding, *others), certificate=None)
