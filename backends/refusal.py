"""The error of a refused graph in a job: one rank prints the report in full, and the others a line, after it."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from typing import TYPE_CHECKING, Any

from verifycompile.backends.reports import line_of, printing_rank, rank_of_job
from verifycompile.diagnostics.report import Report
from verifycompile.torch_interface.errors import RefinementError

if TYPE_CHECKING:
    from verifycompile.agreement.channel import Channel

_PATIENCE = 5.0
"""Seconds that ranks wait for the one that prints: a launcher ends the job at the first process that ends."""


@dataclasses.dataclass(frozen=True)
class Together:
    """The ranks that find the same of a frame. ``channel``: between them; None outside of a job."""

    ranks: tuple[int, ...] = (0,)
    frame: str = ""
    channel: Channel | None = None


def refusal(report: Report, together: Together, *, in_full: bool = False) -> RefinementError:
    """The error to raise on this rank. Where another one prints the report, this returns once that is printed.

    ``in_full``: ``str`` of the error is the report on every rank.
    """
    error = RefinementError(report)
    channel, frame, ranks = together.channel, together.frame, together.ranks
    if channel is None or len(ranks) == 1 or rank_of_job() not in ranks:
        return error
    if rank_of_job() == printing_rank(report, ranks):
        # An error that nobody caught is printed before the process ends; one that was caught is dropped.
        weakref.finalize(error, channel.say_printed, frame, ranks)
        return error
    channel.wait_until_printed(frame, ranks, _PATIENCE)
    line = line_of(report, ranks)
    if not in_full:
        error.text = line
    _print_as_line(error, line)
    return error


_lines: weakref.WeakKeyDictionary[RefinementError, str] = weakref.WeakKeyDictionary()
_hooks: weakref.WeakSet[Any] = weakref.WeakSet()


def _print_as_line(error: RefinementError, line: str) -> None:
    """From now on, where nobody catches ``error``, the process ends with ``line`` and without a traceback."""
    _lines[error] = line
    hook = sys.excepthook
    if hook in _hooks:
        return  # one for all errors, unless somebody has put another in its place

    def print_line(kind: Any, value: BaseException, traceback: Any) -> None:
        if isinstance(value, RefinementError) and value in _lines:
            sys.stderr.write(f"verifycompile: {_lines[value]}\n")
            return
        hook(kind, value, traceback)

    _hooks.add(print_line)
    sys.excepthook = print_line
