"""The user's source lines, cut to what fits on a screen, with the place to underline."""

from __future__ import annotations

import dataclasses
import linecache
import os

from verifycompile.program import SourceLocation

MAX_WIDTH = 120
"""Characters of a source line that are shown."""

_TAB = "    "
_ELLIPSIS = "..."
_CONTEXT = 20
"""Characters kept before the underlined range where the beginning of a line is cut off."""


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """One line of source: ``text`` as shown, and the half-open range of its characters to underline."""

    text: str
    start: int
    end: int


def display_path(file: str) -> str:
    """``file`` relative to the working directory where it lies below it, else unchanged."""
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive on Windows
        return file
    return file if relative.startswith(os.pardir) else relative


def excerpt(location: SourceLocation) -> Excerpt | None:
    """The line at ``location``; None where the source cannot be read or has no such line."""
    line = linecache.getline(location.file, location.line).rstrip("\r\n")
    if not line.strip():
        return None
    start, end = _span(line, location)
    text = line.replace("\t", _TAB)
    start, end = (len(line[:column].replace("\t", _TAB)) for column in (start, end))
    return _cut(Excerpt(text.rstrip(), start, end))


def _span(line: str, location: SourceLocation) -> tuple[int, int]:
    """Zero-based half-open range; the whole statement where the location has no end."""
    width = len(line.rstrip())
    first = len(line) - len(line.lstrip())
    if location.end_column is None:
        return (max(location.column - 1, first) if location.column - 1 < width else first), width
    start = min(max(location.column - 1, 0), width - 1)
    return start, max(min(location.end_column - 1, width), start + 1)


def _cut(line: Excerpt) -> Excerpt:
    """At most ``MAX_WIDTH`` characters, with the beginning of the underlined range among them."""
    if len(line.text) <= MAX_WIDTH:
        return line
    room = MAX_WIDTH - 2 * len(_ELLIPSIS)
    offset = 0 if line.end <= room else max(line.start - _CONTEXT, 0)
    prefix = _ELLIPSIS if offset > 0 else ""
    suffix = _ELLIPSIS if offset + room < len(line.text) else ""
    shift = len(prefix) - offset
    return Excerpt(
        text=prefix + line.text[offset : offset + room] + suffix,
        start=line.start + shift,
        end=min(line.end, offset + room) + shift,
    )
