"""What the capture of a program raises."""

from __future__ import annotations

from verifycompile.program import SourceLocation


class CaptureError(Exception):
    """Why a program has no graph, with the line of the user's code that stopped the capture."""

    def __init__(self, message: str, location: SourceLocation | None) -> None:
        super().__init__(message)
        self.message, self.location = message, location
