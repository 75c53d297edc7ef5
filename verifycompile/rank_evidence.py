"""What one process's objects say about the other ranks that it stands for, and what they do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Program, SourceLocation
from verifycompile.question import Provenance
from verifycompile.torch_interface.acting_rank import is_pretended
from verifycompile.torch_interface.observation import Read, ReadKind, reads

_SHOWN = 3
"""So many places are named in a message."""
_DIFFERENCE = "this was found with the objects of one rank in the place of all: it need not be so on the others"


def with_rank_evidence(report: Report, implementation: Program, options: Options) -> Report:
    """The report, unproved where the objects of one rank may not be those of the ranks that it stands for.

    Where the ranks were neither compared nor built, and the user's code asked for its rank before, or in a program that
    is not proved while it was traced (and earlier questions may have been missed), nothing is proved or refuted.
    """
    mesh = implementation.mesh
    if implementation.provenance is not Provenance.ASSUMED or mesh is None or len(mesh.ranks) == 1:
        return report
    if not is_pretended():
        return report
    own = tuple(read for read in reads(ReadKind.RANK) if not read.traced and not read.installed)
    asked = own if report.verdict is Verdict.VERIFIED else (*own, *implementation.asked)
    return _unproved(report, asked, options) if asked else report


def _listed(places: Sequence[str]) -> str:
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _unproved(report: Report, asked: Sequence[Read], options: Options) -> Report:
    severity = Severity.WARNING if options.on_unproved == "warn" else Severity.ERROR
    places = tuple(dict.fromkeys(map(str, asked)))
    finding = Finding(
        code="VC207",
        severity=severity,
        message=(
            f"the program asked for its rank: {_listed(places)}. This process alone stands for all ranks, whose models "
            "may hold other numbers. Pass the option `build`, a callable without arguments that makes the model: it is "
            "called once for each rank."
        ),
        impl_location=SourceLocation(asked[0].file, asked[0].line, function=asked[0].function),
        label="the rank is read here",
    )
    others = tuple(
        dataclasses.replace(
            item,
            severity=severity,
            verdict=Verdict.UNPROVED,
            counterexample=None,
            notes=(*item.notes, _DIFFERENCE) if item.verdict is Verdict.REFUTED else item.notes,
        )
        for item in report.findings
    )
    return dataclasses.replace(report, verdict=Verdict.UNPROVED, findings=(finding, *others), certificate=None)
