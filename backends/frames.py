"""What became of each frame of a job under the flag: a line each, a summary at exit, a record in the report folder."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import os
import sys
import time

from verifycompile.backends.autoload import COMMAND_VARIABLE, FOLDER_VARIABLE
from verifycompile.backends.reports import keep_line, rank_of_job
from verifycompile.diagnostics.describe import plural
from verifycompile.diagnostics.render_concise import tag
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.source_text import display_path
from verifycompile.torch_interface.dynamo.eager_frames import EagerFrame
from verifycompile.torch_interface.dynamo.frames import Frame

_INSTALLED = f"{os.sep}site-packages{os.sep}"
NOT_CHECKED = "not checked"
"""A frame of which nothing could be asked."""
FAILED = "failed"
"""A frame of which the question is incomplete, or whose check ended in an error."""
WAIVED = "waived"
"""A frame that is not verified and runs, because every finding is waived."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one compilation.

    ``verdict``: one of a report's, ``WAIVED``, ``NOT_CHECKED`` or ``FAILED``. ``reason``: why it was not checked or is
    waived; of what was checked, against which spec and for which ranks. ``report``: its file in the report folder, ""
    without one.
    """

    function: str
    file: str
    line: int
    verdict: str
    reason: str
    seconds: float
    assumptions: int = 0
    report: str = ""

    @property
    def frame(self) -> str:
        """``forward (train.py:41)``; a file of an installed package by its place in the package."""
        return f"{self.function} ({display_path(self.file).rpartition(_INSTALLED)[2]}:{self.line})"

    def __str__(self) -> str:
        if self.verdict in (NOT_CHECKED, FAILED):
            return f"{self.frame} {self.verdict}: {self.reason}"
        listed = plural(self.assumptions, "assumption") if self.assumptions else "no assumptions"
        return f"{self.frame} {self.verdict} in {self.seconds:.2f} s: {self.reason}; {listed}"


class Frames:
    """The outcomes of this process. They are told on standard error by one rank of those that ran a frame together."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []
        self._told: list[Outcome] = []
        self.has_begun = False

    def add(self, outcome: Outcome, *, first_rank: int = 0, says: bool = True) -> None:
        """Record ``outcome``. ``first_rank``: of those that run the frame. ``says``: False where an error tells it.

        Raises ``UsageError`` VC306 where the report folder cannot be written.
        """
        self._outcomes.append(outcome)
        keep_line("frames", {**dataclasses.asdict(outcome), "rank": rank_of_job()})
        if rank_of_job() not in (None, first_rank):
            return
        self._told.append(outcome)
        if says:
            _tell(str(outcome))

    def tell_summary(self) -> None:
        """One line on all frames of which this rank told; a single one was told whole.

        Torch runs some calls of ``torch.compile`` without compiling anything and without a word: then that is told,
        unless an error or an interrupt has ended the script.
        """
        nothing = not self._outcomes and not self.has_begun and not hasattr(sys, "last_type")
        if nothing and os.environ.get("RANK", "0") == "0" and not multiprocessing.current_process().daemon:
            _tell("torch.compile was used and compiled nothing, so nothing was checked")
        if len(self._told) > 1:
            _tell(summary(self._told))


FRAMES = Frames()
"""Those of this process; filled by the backend behind the flag alone."""


def name_of(frame: Frame) -> str:
    """``forward (train.py:41)``."""
    return outcome_of(frame, 0.0, None, "", "").frame


def failure_of(frame: Frame, started: float, reason: str) -> Outcome:
    """A check that ended in an error. ``started``: the reading of ``time.perf_counter`` when it began."""
    return dataclasses.replace(outcome_of(frame, started, None, reason, ""), verdict=FAILED)


def unchecked(frame: EagerFrame) -> Outcome:
    """A frame that runs as Python code."""
    return Outcome(frame.qualified, frame.file, frame.line, NOT_CHECKED, f"it runs uncompiled: {frame.reason}", 0.0)


def outcome_of(frame: Frame, started: float, report: Report | None, unasked: str, kept: str) -> Outcome:
    """``report``: None where nothing was asked, for the reason ``unasked``. ``kept``: the report's file, or ""."""
    verdict = NOT_CHECKED if report is None else report.verdict.value
    reason = unasked if report is None else report.question.describe()
    if report is not None and report.is_waived:
        verdict = WAIVED
        reason = "; ".join(f"{tag(finding)} {finding.waived}" for finding in report.findings)
    line = frame.resumed_line if frame.is_resumption else frame.shown.co_firstlineno
    return Outcome(
        function=frame.function,
        file=frame.shown.co_filename,
        line=line,
        verdict=verdict,
        reason=reason,
        seconds=round(time.perf_counter() - started, 3),
        assumptions=0 if report is None else len(set(report.assumptions)),
        report=kept,
    )


def summary(outcomes: list[Outcome]) -> str:
    """One line on all of them: how many of each verdict, the slowest, where the reports are."""
    counts = collections.Counter(outcome.verdict for outcome in outcomes)
    parts = [f"{plural(len(outcomes), 'frame')}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items())]
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    parts.append(f"slowest {slowest.frame}, {slowest.seconds:.2f} s")
    if folder := os.environ.get(COMMAND_VARIABLE, os.environ.get(FOLDER_VARIABLE)):
        parts.append(f"reports in {folder}")
    return "; ".join(parts)


def _tell(text: str) -> None:
    sys.stderr.write(f"verifycompile: {text}\n")
    sys.stderr.flush()
