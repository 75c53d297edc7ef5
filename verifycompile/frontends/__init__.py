"""Sources of graphs: a call of a model, a frame that Dynamo compiles, graphs captured elsewhere, a training step.

Each is a class with the one method of ``Frontend``. What follows, from two programs to the report, is the same for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Protocol

from verifycompile.agreement.channel import Channel
from verifycompile.agreement.together import verify_together
from verifycompile.capture import Results
from verifycompile.capture.capture_error import CaptureError
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.diagnostics.waiver import sentence_of_unused, unused, with_waivers
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.torch_interface.rank_threads.dispatch_state import dispatch_as_before


@dataclasses.dataclass(frozen=True)
class Captured:
    """Spec and implementation. ``channel``: to the other processes of a job that capture their part of it.

    ``results``: what the frame returns, of a frame that is compiled.
    """

    spec: Program
    implementation: Program
    channel: Channel | None = None
    results: Results | None = None


class Frontend(Protocol):
    """A source of graphs."""

    def captured(self, options: Options) -> contextlib.AbstractContextManager[Captured]:
        """Inside, what differs by rank or has several readings can be traced again while the proof goes on.

        Raises ``UsageError`` where the question is incomplete or contradictory, ``CaptureError`` where there is no
        graph.
        """
        ...


def report_of(frontend: Frontend, options: Options) -> Report:
    """The report on what a source captures, with what the options waive.

    Raises ``UsageError`` where the question is incomplete or contradictory, VC311 for a waiver of something else.
    """
    try:
        with dispatch_as_before(), frontend.captured(options) as captured:
            report = verify_together(captured.spec, captured.implementation, options, captured.channel)
    except CaptureError as error:
        report = _uncaptured(error, options)
    except UsageError as error:
        raise error.with_traceback(None) from None  # the sentence says what is wrong: no steps of the capture
    unneeded = unused(options.waivers, (report,))
    if unneeded:
        raise UsageError("VC311", sentence_of_unused(unneeded[0]))
    return with_waivers(report, options.waivers)


def _uncaptured(error: CaptureError, options: Options) -> Report:
    severity = Severity.WARNING if options.on_unproved == "warn" else Severity.ERROR
    finding = Finding("VC215", severity, f"{error.message}.", impl_location=error.location)
    return Report(verdict=Verdict.UNPROVED, findings=(finding,))
