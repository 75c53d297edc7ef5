"""One line a finding, for terminals with many reports and for the ranks that do not print in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.source_text import display_path
from verifycompile.diagnostics.verdict import Verdict

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report


def tag(finding: Finding) -> str:
    """``error[VC101]``; ``unproved[VC101]`` where nothing shows that the program is wrong, misuse apart."""
    is_misuse = finding.code.startswith("VC3")
    word = "error" if is_misuse or finding.verdict is Verdict.REFUTED else "unproved"
    return f"{word}[{finding.code}]"


def heading(finding: Finding) -> str:
    """``error[VC101]: message``."""
    return f"{tag(finding)}: {finding.message}"


def render_finding(finding: Finding) -> str:
    """``file:line:column: error[VC101]: message``."""
    if (location := finding.location) is None:
        return heading(finding)
    return f"{display_path(location.file)}:{location.line}:{location.column}: {heading(finding)}"


def render_report(report: Report) -> str:
    """A line a finding; for a verified report one line."""
    if report.verdict is Verdict.VERIFIED:
        count = len(report.relations)
        return f"verified: {count} {'relation' if count == 1 else 'relations'}"
    return "\n".join(render_finding(finding) for finding in report.findings)
