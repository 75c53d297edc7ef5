"""The full text: source lines with carets, notes, help, in the shape that compilers have taught people to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from verifycompile.diagnostics.describe import (
    assumption_lines,
    counterexample_lines,
    finding_notes,
    statistics_lines,
    title_of,
)
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.render_concise import tag
from verifycompile.diagnostics.source_text import display_path, excerpt
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

VERIFIED = "verified: every output of the spec is a clean expression of the parallel program's outputs"
UNPROVED = "unproved: the parallel program is neither verified nor refuted; what blocked the proof is listed above"

WAIVED = "waived: all findings above are waived, so that the program goes on; nothing of it is verified"


def render_report(report: Report) -> str:
    """The text that ``str(report)`` and the compile error show. Ends without a newline."""
    if report.verdict is Verdict.VERIFIED:
        lines = [VERIFIED]
        lines += [_sub_item("=", line, "") for line in statistics_lines(report)]
        lines += [_sub_item("= assumption:", line, "") for line in assumption_lines(report.assumptions)]
        return "\n".join(lines)
    parts = [render_finding(finding) for finding in report.findings]
    if report.assumptions:
        lines = [_sub_item("-", line, "") for line in assumption_lines(report.assumptions)]
        parts.append("\n".join(["assumed:", *lines]))
    if report.verdict is Verdict.UNPROVED:
        parts.append(UNPROVED)
    if report.is_waived:
        parts.append(WAIVED)
    return "\n\n".join(parts)


def render_finding(finding: Finding) -> str:
    """One finding. Ends without a newline."""
    labels = _labels(finding)
    margin = " " * max((len(str(label.location.line)) for label in labels), default=1)
    lines = [_heading(finding)]
    lines += _snippets(labels, margin)
    if not _message_is_shown(finding, labels):
        lines.append(_sub_item("= note:", finding.message, margin))
    lines += [_sub_item("= note:", note, margin) for note in finding_notes(finding)]
    if finding.counterexample is not None:
        note = "\n".join(counterexample_lines(finding.counterexample))
        lines.append(_sub_item("= note:", note, margin))
    if finding.hint is not None:
        lines.append(_sub_item("= help:", finding.hint, margin))
    lines.append(_sub_item("= see:", f"verifycompile explain {finding.code}", margin))
    return "\n".join(lines)


def _message_is_shown(finding: Finding, labels: tuple[Label, ...]) -> bool:
    """Whether the heading or a label says what the message says."""
    return finding.message in (title_of(finding), *(label.text for label in labels))


def _heading(finding: Finding) -> str:
    """The title of the code: the particulars stand at the source line."""
    return f"{tag(finding)}: {title_of(finding)}"


def _sub_item(marker: str, text: str, margin: str) -> str:
    """``  = note: text``; further lines of ``text`` are aligned with the first."""
    first, *rest = text.split("\n")
    kind = f"{margin} {marker}"
    return "\n".join([f"{kind} {first}", *(" " * len(kind) + " " + line for line in rest)])


def _labels(finding: Finding) -> tuple[Label, ...]:
    """The primary place first, then the others; the spec's place where it is another line."""
    if (primary := finding.location) is None:
        return finding.labels
    labels = [Label(primary, _primary_text(finding)), *finding.labels]
    spec = finding.spec_location
    if spec is not None and all(_place(spec) != _place(label.location) for label in labels):
        labels.append(Label(spec, "the spec computes it here"))
    return tuple(labels)


def _primary_text(finding: Finding) -> str:
    if finding.label or finding.message == title_of(finding):
        return finding.label
    return finding.message


def _place(location: SourceLocation) -> tuple[str, int]:
    return location.file, location.line


def _snippets(labels: tuple[Label, ...], margin: str) -> Iterator[str]:
    """Source lines with their underlines; a new header wherever the file changes."""
    previous: SourceLocation | None = None
    for position, label in enumerate(labels):
        location = label.location
        if previous is None or previous.file != location.file:
            arrow = "-->" if position == 0 else ":::"
            yield f"{margin}{arrow} {display_path(location.file)}:{location.line}:{location.column}"
            yield f"{margin} |"
        yield from _snippet(label, position == 0, previous, margin)
        previous = location


def _snippet(label: Label, primary: bool, previous: SourceLocation | None, margin: str) -> Iterator[str]:
    location = label.location
    number = f"{location.line:>{len(margin)}}"
    if (line := excerpt(location)) is None:
        yield f"{number} | (source not available) {label.text}".rstrip()
        return
    if previous is None or _place(previous) != _place(location):
        yield f"{number} | {line.text}"
    underline = ("^" if primary else "-") * (line.end - line.start)
    yield f"{margin} | {' ' * line.start}{underline} {label.text}".rstrip()
