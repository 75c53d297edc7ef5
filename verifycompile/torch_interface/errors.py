"""Exceptions that torch.compile hands to the user as they are.

Dynamo wraps what a backend raises into ``BackendCompilerFailed``, and drops it where ``suppress_errors`` is set, which
would turn a failed verification into an unverified run. Two of its private base classes are exempt:
``ShortenTraceback`` is not wrapped, ``UncapturedHigherOrderOpError`` is never suppressed. Dynamo also appends to
``args[0]`` of what passes, so the text of these classes does not come from ``args``.
"""

from __future__ import annotations

import inspect
import traceback
from typing import TYPE_CHECKING

from torch._dynamo.exc import ShortenTraceback, UncapturedHigherOrderOpError

from verifycompile.errors import UsageError

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report


class CompileError(ShortenTraceback, UncapturedHigherOrderOpError):
    """Base of what the backend raises. ``str`` of it is ``text``, always."""

    def __init__(self, text: str) -> None:
        # Not the initializers of both bases: UncapturedHigherOrderOpError's sets ``real_stack``, which makes Dynamo
        # append its own stack and a hint about TORCHDYNAMO_VERBOSE to a text that names the user's lines already.
        RuntimeError.__init__(self, text)
        frame = inspect.currentframe()
        self.first_useful_frame = None if frame is None else frame.f_back
        self._torch_dynamo_tracer_output = None
        self.frame_exec_strategy = None
        self.msg = text
        self.text = text

    def __str__(self) -> str:
        return self.text


class RefinementError(CompileError):
    """The parallel program is refuted or unproved. ``report`` says why; ``str`` is ``str(report)``."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


class CompileUsageError(CompileError, UsageError):
    """A ``UsageError`` raised while torch.compile runs: caught by ``except verifycompile.UsageError``."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(str(error))
        self.code = error.code
        self.message = error.message


class InternalError(CompileError):
    """verifycompile itself failed: nothing was verified, and the program does not run.

    The text holds the traceback of ``error``, because Dynamo removes tracebacks from causes.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"verifycompile failed with {type(error).__name__}: {error}\n"
            "This says nothing about the program that was being verified. Please report it with what follows.\n\n"
            + "".join(traceback.format_exception(error)).rstrip()
        )


# Tracebacks show the names that users import.
RefinementError.__module__ = "verifycompile"
CompileUsageError.__module__ = "verifycompile"
CompileUsageError.__qualname__ = UsageError.__qualname__


def as_compile_error(error: Exception) -> CompileError:
    """The exception that a backend is to raise (``from None``) in place of ``error``."""
    if isinstance(error, CompileError):
        return error
    if isinstance(error, UsageError):
        return CompileUsageError(error)
    return InternalError(error)
