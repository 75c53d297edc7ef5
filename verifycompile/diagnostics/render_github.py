"""GitHub Actions workflow commands: findings appear as annotations on the lines of a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.render_concise import heading
from verifycompile.diagnostics.source_text import display_path

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def render_finding(finding: Finding) -> str:
    """One ``::error`` or ``::warning`` command."""
    properties = [f"title={_escape_property(finding.code)}"]
    if (location := finding.location) is not None:
        properties = [
            f"file={_escape_property(display_path(location.file))}",
            f"line={location.line}",
            f"col={location.column}",
            *properties,
        ]
    message = heading(finding) if finding.label in {"", finding.message} else f"{heading(finding)}\n{finding.label}"
    return f"::{finding.severity.value} {','.join(properties)}::{_escape(message)}"


def render_report(report: Report) -> str:
    """A command a finding; nothing for a verified report."""
    return "\n".join(render_finding(finding) for finding in report.findings)
