"""Errors of use: what the user asked cannot be checked as asked."""

from __future__ import annotations


class UsageError(Exception):
    """The call, the model or an option does not fit; nothing was verified.

    ``code`` is a diagnostic code (``VC301`` to ``VC311``), ``message`` one or more sentences without it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"error[{self.code}]: {self.message}"
