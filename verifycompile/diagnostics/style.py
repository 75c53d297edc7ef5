"""Colours for terminals. Nothing is coloured unless a caller asks for it."""

from __future__ import annotations

import enum
import os
from typing import TextIO


class Style(enum.Enum):
    """ANSI attributes by meaning."""

    ERROR = "1;31"
    UNPROVED = "1;33"
    VERIFIED = "1;32"
    EMPHASIS = "1"
    GUTTER = "1;34"
    SECONDARY = "34"


def paint(text: str, style: Style, color: bool) -> str:
    """``text`` in ``style``, or unchanged where ``color`` is False."""
    if not color or not text:
        return text
    return f"\x1b[{style.value}m{text}\x1b[0m"


def wants_color(stream: TextIO) -> bool:
    """True for a terminal, unless the variable ``NO_COLOR`` is set to anything but the empty string."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
