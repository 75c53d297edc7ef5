"""The answer to one verification."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.distributed.tensor.placement_types import Placement

from verifycompile.bounds import Stage
from verifycompile.diagnostics.finding import Counterexample, Finding
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.question import Question
from verifycompile.refinement.result import NodeCounts
from verifycompile.refinement.stages import StageCost

if TYPE_CHECKING:
    from verifycompile.certificate import Certificate
    from verifycompile.program import Program


@dataclasses.dataclass(frozen=True)
class Stats:
    """What the verification cost. Seconds are wall-clock; ``peak_memory`` is the process's high-water mark in bytes.

    ``verification_seconds``: of all that follows capture. ``attempts``: what was done in this time, in order of the
    ends. ``stages``: what reading the graphs, the memo of repeated parts, normal form, e-graph and solver cost.
    """

    spec_nodes: int = 0
    implementation_nodes: int = 0
    spec_capture_seconds: float = 0.0
    implementation_capture_seconds: float = 0.0
    verification_seconds: float = 0.0
    peak_memory: int = 0
    counts: NodeCounts = dataclasses.field(default_factory=NodeCounts)
    stages: Mapping[str, StageCost] = dataclasses.field(default_factory=dict[str, StageCost])
    attempts: tuple[Stage, ...] = ()

    @property
    def capture_seconds(self) -> float:
        """Seconds of capture of both programs."""
        return self.spec_capture_seconds + self.implementation_capture_seconds

    @property
    def ratio(self) -> float | None:
        """Seconds of verification over seconds of capture; None where the capture was not timed."""
        if self.capture_seconds == 0.0:
            return None
        return self.verification_seconds / self.capture_seconds


@dataclasses.dataclass(frozen=True)
class Tried:
    """A strategy of the proof: what it is called, why it was tried, and what came of it."""

    strategy: str
    reason: str
    outcome: str


@dataclasses.dataclass(frozen=True)
class SecondLook:
    """Whether both programs were evaluated once though they are proved equal, and what came out, or why not."""

    done: bool
    text: str


_WITHOUT_NUMBERS = ("VC109", "VC110")
"""Codes of programs that are wrong on every input, so that none need be shown."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Verdict, relations, findings and what the proof rests on.

    ``relations``: for each spec output that has one, the clean expression over the implementation's outputs.
    ``placements``: for each of them that is a tensor, how the implementation holds it over the axes of its mesh.
    ``question``: against which spec and for which ranks, and how they are known.
    ``differing_ranks``: in a job whose ranks captured different programs, those that captured another than most did.
    ``strategies``: how a proof was tried, in order.
    ``second_look``: of a verified program, whether it was evaluated as well.
    ``programs``: spec and implementation, where one graph is that of all ranks; the HTML report shows them.
    ``findings``: empty exactly when the verdict is ``VERIFIED``. ``certificate``: present exactly then.
    Raises ``ValueError`` on construction where verdict, findings and certificate contradict each other.
    """

    verdict: Verdict
    relations: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()
    stats: Stats = dataclasses.field(default_factory=Stats)
    question: Question = dataclasses.field(default_factory=Question)
    certificate: Certificate | None = None
    differing_ranks: tuple[int, ...] = ()
    second_look: SecondLook | None = None
    strategies: tuple[Tried, ...] = dataclasses.field(default=(), compare=False)
    placements: Mapping[str, tuple[Placement, ...]] = dataclasses.field(
        default_factory=dict[str, tuple[Placement, ...]], repr=False, compare=False
    )
    programs: tuple[Program, Program] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.verdict is Verdict.VERIFIED and self.findings:
            raise ValueError("a verified report has no findings")
        if self.verdict is not Verdict.VERIFIED and not self.findings:
            raise ValueError(f"a report that is {self.verdict.value} needs a finding")
        if self.verdict is not Verdict.VERIFIED and self.certificate is not None:
            raise ValueError("only a verified report has a certificate")
        shown = any(finding.counterexample is not None or finding.code in _WITHOUT_NUMBERS for finding in self.findings)
        if self.verdict is Verdict.REFUTED and not shown:
            raise ValueError("a refuted report needs a counterexample")

    @property
    def is_waived(self) -> bool:
        """Whether every finding is waived, so that the program may go on. Nothing of it is verified."""
        return bool(self.findings) and all(finding.waived for finding in self.findings)

    @property
    def stops(self) -> bool:
        """Whether a finding is an error: what is unproved is a warning where `on_unproved` is "warn" on all ranks."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def __bool__(self) -> bool:
        return self.verdict is Verdict.VERIFIED

    @property
    def counterexample(self) -> Counterexample | None:
        """That of the first finding that has one."""
        return next((f.counterexample for f in self.findings if f.counterexample is not None), None)

    def __str__(self) -> str:
        from verifycompile.diagnostics.render_text import render_report

        return render_report(self)

    def to_json(self) -> str:
        """The report as one JSON object, without the certificate."""
        from verifycompile.diagnostics.render_json import render_report

        return render_report(self)

    def to_sarif(self) -> str:
        """The findings as a SARIF 2.1.0 log, for code-scanning interfaces."""
        from verifycompile.diagnostics.render_sarif import render_report

        return render_report(self)

    def save_html(self, path: str | pathlib.Path) -> None:
        """Write the report as one HTML file that needs nothing else. Raises ``OSError`` where it cannot be written."""
        from verifycompile.diagnostics.render_html import render_report

        pathlib.Path(path).write_text(render_report(self), encoding="utf-8")


def noted(report: Report, *notes: str) -> Report:
    """The report with notes on its first finding."""
    first, *rest = report.findings
    return dataclasses.replace(report, findings=(first.noted(*notes), *rest))
