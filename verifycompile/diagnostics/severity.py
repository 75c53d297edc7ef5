"""How bad a finding is for the build it occurs in."""

from __future__ import annotations

import enum


class Severity(enum.Enum):
    """``ERROR`` stops the compilation; ``WARNING`` is printed and the program runs."""

    ERROR = "error"
    WARNING = "warning"
