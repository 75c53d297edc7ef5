"""What a verified graph says at its calls of the tensors that ranks were found to hold alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verifycompile.backends.refusal import Together, refusal
from verifycompile.backends.reports import VerificationWarning, warn_with_report
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dynamo.frames import Frame

if TYPE_CHECKING:
    from verifycompile.agreement.held_again import Disagreement, HeldAlike


def comparing_at_calls(
    compiled: Callable[..., Any], held: HeldAlike, frame: Frame, *, only_warns: bool
) -> Callable[..., Any]:
    """``compiled``, the graph of ``frame``, which raises ``RefinementError`` VC208 where ranks hold otherwise what
    they held alike when it was verified.
    """
    from verifycompile.agreement.held_again import comparing

    place = SourceLocation(frame.code.co_filename, frame.code.co_firstlineno, function=frame.function)

    def refuse(found: Disagreement) -> None:
        severity = Severity.WARNING if only_warns else Severity.ERROR
        finding = Finding(code="VC208", severity=severity, message=found.message, impl_location=place)
        report = Report(verdict=Verdict.UNPROVED, findings=(finding,))
        if not only_warns:
            raise refusal(report, Together(found.ranks, found.frame, held.channel), in_full=True)
        warn_with_report(report, found.ranks)

    def warn(text: str) -> None:
        warnings.warn_explicit(text, VerificationWarning, place.file, place.line)

    return comparing(compiled, held, refuse, warn)
