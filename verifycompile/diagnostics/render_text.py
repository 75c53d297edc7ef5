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
from verifycompile.diagnostics.style import Style, paint
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

VERIFIED = "verified: every output of the spec is a clean expression of the parallel program's outputs"
UNPROVED = "unproved: the parallel program is neither verified nor refuted; what blocked the proof is listed above"

WAIVED = "waived: all findings above are waived, so that the program goes on; nothing of it is verified"


def render_report(report: Report, *, color: bool = False) -> str:
    """The text that ``str(report)`` and the compile error show. Ends without a newline."""
    if report.verdict is Verdict.VERIFIED:
        lines = [paint(VERIFIED, Style.VERIFIED, color)]
        lines += [_sub_item("=", line, "", color) for line in statistics_lines(report)]
        lines += [_sub_item("= assumption:", line, "", color) for line in assumption_lines(report.assumptions)]
        return "\n".join(lines)
    parts = [render_finding(finding, color=color) for finding in report.findings]
    if report.assumptions:
        lines = [_sub_item("-", line, "", color) for line in assumption_lines(report.assumptions)]
        parts.append("\n".join(["assumed:", *lines]))
    if report.verdict is Verdict.UNPROVED:
        parts.append(paint(UNPROVED, Style.UNPROVED, color))
    if report.is_waived:
        parts.append(paint(WAIVED, Style.UNPROVED, color))
    return "\n\n".join(parts)


def render_finding(finding: Finding, *, color: bool = False) -> str:
    """One finding. Ends without a newline."""
    labels = _labels(finding)
    margin = " " * max((len(str(label.location.line)) for label in labels), default=1)
    lines = [_heading(finding, color)]
    lines += _snippets(labels, margin, color)
    if not _message_is_shown(finding, labels):
        lines.append(_sub_item("= note:", finding.message, margin, color))
    lines += [_sub_item("= note:", note, margin, color) for note in finding_notes(finding)]
    if finding.counterexample is not None:
        note = "\n".join(counterexample_lines(finding.counterexample))
        lines.append(_sub_item("= note:", note, margin, color))
    if finding.hint is not None:
        lines.append(_sub_item("= help:", finding.hint, margin, color))
    lines.append(_sub_item("= see:", f"verifycompile explain {finding.code}", margin, color))
    return "\n".join(lines)


def _message_is_shown(finding: Finding, labels: tuple[Label, ...]) -> bool:
    """Whether the heading or the label of the primary place says what the message says."""
    if finding.message == title_of(finding):
        return True
    return bool(labels) and finding.label in {"", finding.message}


def _heading(finding: Finding, color: bool) -> str:
    """The title of the code: the particulars stand at the source line."""
    style = Style.ERROR if finding.verdict is Verdict.REFUTED else Style.UNPROVED
    return f"{paint(tag(finding), style, color)}: {paint(title_of(finding), Style.EMPHASIS, color)}"


def _sub_item(marker: str, text: str, margin: str, color: bool) -> str:
    """``  = note: text``; further lines of ``text`` are aligned with the first."""
    first, *rest = text.split("\n")
    kind = f"{margin} {marker}"
    return "\n".join([f"{paint(kind, Style.GUTTER, color)} {first}", *(" " * len(kind) + " " + line for line in rest)])


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


def _snippets(labels: tuple[Label, ...], margin: str, color: bool) -> Iterator[str]:
    """Source lines with their underlines; a new header wherever the file changes."""
    bar = paint(f"{margin} |", Style.GUTTER, color)
    previous: SourceLocation | None = None
    for position, label in enumerate(labels):
        location = label.location
        if previous is None or previous.file != location.file:
            arrow = paint(f"{margin}-->" if position == 0 else f"{margin}:::", Style.GUTTER, color)
            yield f"{arrow} {display_path(location.file)}:{location.line}:{location.column}"
            yield bar
        yield from _snippet(label, position == 0, previous, margin, color)
        previous = location


def _snippet(label: Label, primary: bool, previous: SourceLocation | None, margin: str, color: bool) -> Iterator[str]:
    location = label.location
    number = f"{location.line:>{len(margin)}}"
    if (line := excerpt(location)) is None:
        yield f"{paint(f'{number} |', Style.GUTTER, color)} (source not available) {label.text}".rstrip()
        return
    if previous is None or _place(previous) != _place(location):
        yield f"{paint(f'{number} |', Style.GUTTER, color)} {line.text}"
    underline = ("^" if primary else "-") * (line.end - line.start)
    marks = paint(f"{underline} {label.text}".rstrip(), Style.ERROR if primary else Style.SECONDARY, color)
    yield f"{paint(f'{margin} |', Style.GUTTER, color)} {' ' * line.start}{marks}"
