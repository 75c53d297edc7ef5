"""Findings that a team has decided to live with for a time: they stop nothing, and are verified by nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import fnmatch
import pathlib
from collections.abc import Collection, Sequence

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity


@dataclasses.dataclass(frozen=True)
class Waiver:
    """What is waived, why and until when.

    ``code``, ``module`` (an ``fnmatch`` pattern of a module path) and ``node`` (``file.py:line``): all that are given
    must fit a finding, and one is. ``origin``: where it stands, for messages.
    """

    reason: str
    expires: dt.date
    origin: str
    code: str = ""
    module: str = ""
    node: str = ""

    def fits(self, finding: Finding) -> bool:
        """Whether it speaks of the finding."""
        place = finding.location
        if self.code and finding.code != self.code:
            return False
        if self.module and (place is None or not fnmatch.fnmatchcase(place.module, self.module)):
            return False
        return not self.node or (place is not None and self._is_at(place.file, place.line))

    def _is_at(self, file: str, line: int) -> bool:
        named, _, number = self.node.rpartition(":")
        parts = pathlib.PurePath(named).parts
        return str(line) == number and pathlib.PurePath(file).parts[-len(parts) :] == parts


def with_waivers(report: Report, waivers: Sequence[Waiver]) -> Report:
    """The report with the findings marked of which a waiver speaks. Its verdict is what it was."""
    if report or not waivers:
        return report
    findings: list[Finding] = []
    for finding in report.findings:
        fitting = next((waiver for waiver in waivers if waiver.fits(finding)), None)
        text = "" if fitting is None else f"{fitting.reason} ({fitting.origin}, until {fitting.expires})"
        findings.append(dataclasses.replace(finding, severity=Severity.WARNING, waived=text) if fitting else finding)
    return dataclasses.replace(report, findings=tuple(findings))


def unused(waivers: Sequence[Waiver], reports: Collection[Report]) -> tuple[Waiver, ...]:
    """Those of which no report has a finding."""
    findings = [finding for report in reports for finding in report.findings]
    return tuple(waiver for waiver in waivers if not any(waiver.fits(finding) for finding in findings))


def sentence_of_unused(waiver: Waiver) -> str:
    """What to do about a waiver that nothing needs."""
    return f"{waiver.origin} waives nothing that was found: take it out."
