"""Runs that no proof speaks of: an error where the gate has accepted the frame before, else a warning, once."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import Partial

from verifycompile.backends.reports import VerificationWarning, rank_of_job, text_for_this_rank, warn_with_report
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.program import OutputKind, Program, SourceLocation
from verifycompile.torch_interface.dynamo import Frame
from verifycompile.torch_interface.eager_frames import EagerFrame, Watch, watch_eager_frames
from verifycompile.torch_interface.errors import RefinementError
from verifycompile.torch_interface.numbers_read import number_of_partial_result, watch_numbers_of_partial_dtensors
from verifycompile.torch_interface.whole_program import is_whole_program


def refuse_unverified_runs(
    applies: Callable[[Any], bool],
    only_warns: Callable[[Any], bool],
    *,
    asks: Callable[[Any], bool] = lambda _: False,
    has_spec: Callable[[Any], bool] = lambda _: False,
    checks_every_backend: bool = False,
    tell: Callable[[EagerFrame], None] | None = None,
) -> None:
    """From now on, compilers to which ``applies`` run frames that were verified, or raise ``RefinementError`` VC210.

    ``only_warns``: compilers for which the user asked to go on. ``asks``: those whose options say what to prove: it is
    an error if there is nothing of which it could be proved. ``has_spec``: those with a spec, which speaks of the whole
    program. ``checks_every_backend``: whichever backend compiles is checked, so that another one may be forced,
    and not all frames are expected to be parallel.
    ``tell``: told once of each frame of a job that was never verified; by default that is a warning.
    """

    def seen(compiler: Any, frame: EagerFrame) -> None:
        if frame.held_sum and not frame.breaks_at_once:
            place = SourceLocation(frame.file, frame.line, function=frame.function)
            notes = (f"`{frame.function}` runs as Python code: {frame.reason}",)
            _refuse(_SUM_FOR_PYTHON.format(frame.held_sum), only_warns(compiler), place, "VC101", notes)
            return
        if frame.has_no_graph and not frame.was_accepted:
            if asks(compiler):
                raise UsageError("VC310", _NO_GRAPH.format(frame.function))
            return
        if frame.is_whole and not frame.was_accepted and has_spec(compiler):
            raise UsageError("VC305", _IN_PARTS.format(frame.function, frame.reason))
        if frame.breaks_at_once:
            return
        if not frame.was_accepted:
            _tell_once(frame, tell or _warn)
            return
        message = f"`{frame.function}` was verified for other inputs and would run as it is now: {frame.reason}"
        place = SourceLocation(frame.file, frame.line, function=frame.function)
        limit = _LIMIT.search(frame.reason)
        notes = () if limit is None else (_RAISE_LIMIT.format(limit[0]),)
        _refuse(message, only_warns(compiler), place, notes=notes)

    def switched_off(compiler: Any, reason: str) -> None:
        _refuse(f"nothing that runs now would be what was verified: {reason}", only_warns(compiler), None)

    watch_eager_frames(Watch(applies, only_warns, seen, switched_off, checks_every_backend, checks_every_backend))


_LIMIT = re.compile(r"(accumulated_)?recompile_limit")
_RAISE_LIMIT = (
    "`torch._dynamo.config.{} = 1024` before the first call lets torch compile the function again for these inputs, "
    "and each graph is checked"
)
_NO_GRAPH = (
    "`{}` computes nothing with tensors: torch.compile makes no graph of it, so that its options (`spec`, `mesh` or "
    "placements) apply to nothing. Compile what computes, or leave the options away."
)
_WHOLE = (
    "but the option `spec` says what the whole program computes. Remove what breaks the graph (`fullgraph=True` shows "
    "where it is; hooks of `fully_shard` on inner modules do), leave the option out, or compile each part by itself "
    "with its own spec."
)
_IN_PARTS = f"`{{}}` runs as Python code, and what it calls is compiled in parts ({{}}), {_WHOLE}"
PART = f"`{{}}` is compiled as a part of what was given to torch.compile, {_WHOLE}"


def refuse_numbers_of_partial_sums(frame: Frame, *, only_warns: bool) -> None:
    """``frame`` is under compilation: neither it nor what runs afterwards may read numbers from partial sums."""

    def refuse(location: SourceLocation | None) -> None:
        message = "a number is read from a DTensor that is a partial sum: each rank reads its own part"
        _refuse(message, only_warns, location, "VC101")

    watch_numbers_of_partial_dtensors(refuse)
    number = number_of_partial_result(frame)
    if number is not None:
        message = f"the number {number} is read from a partial sum between two graphs: each rank reads its own part"
        _refuse(message, only_warns, SourceLocation(frame.code.co_filename, frame.resumed_line), "VC101")


def without_sums_for_python(report: Report, implementation: Program, frame: Frame, only_warns: bool) -> Report:
    """The report, unproved where Python code that is not compiled gets a sum of which each rank has a part.

    ``frame`` is under compilation. What follows on it after a graph break is compiled, and knows what it gets; a mean
    is each rank's own loss, which its data-parallel wrapper takes the mean of.
    """
    if not report or frame.is_resumption or is_whole_program(frame.code):
        return report
    plain = [output for output in implementation.outputs if output.kind is OutputKind.VALUE and not output.declared]
    for output in plain:
        sums = [item for item in report.placements.get(output.name, ()) if isinstance(item, Partial)]
        if any(item.reduce_op != "avg" for item in sums):
            place = SourceLocation(frame.code.co_filename, frame.code.co_firstlineno, function=frame.function)
            finding = Finding(
                code="VC101",
                severity=Severity.WARNING if only_warns else Severity.ERROR,
                message=_SUM_FOR_PYTHON.format(output.name),
                impl_location=place,
                notes=(_GOES_ON_IN_PYTHON.format(frame.function),),
            )
            return dataclasses.replace(report, verdict=Verdict.UNPROVED, findings=(finding,), certificate=None)
    return report


_SUM_FOR_PYTHON = "`{}` is a partial sum, and goes to Python code that nothing checks"
_GOES_ON_IN_PYTHON = (
    "torch.compile compiles `{}` alone, since what calls it runs as Python code: reduce the sum before it is returned, "
    "declare it with `out_placements`, or remove what breaks the graph (`fullgraph=True` shows where it is)"
)


def _refuse(
    message: str,
    only_warns: bool,
    location: SourceLocation | None,
    code: str = "VC210",
    notes: tuple[str, ...] = (),
) -> None:
    severity = Severity.WARNING if only_warns else Severity.ERROR
    finding = Finding(code=code, severity=severity, message=message, impl_location=location, notes=notes)
    report = Report(verdict=Verdict.UNPROVED, findings=(finding,))
    if only_warns:
        warn_with_report(report)
        return
    refused = RefinementError(report)
    refused.text = text_for_this_rank(report)
    raise refused


_told: set[tuple[str, int]] = set()


def _tell_once(frame: EagerFrame, tell: Callable[[EagerFrame], None]) -> None:
    if not dist.is_available() or not dist.is_initialized() or (frame.file, frame.line) in _told:
        return
    _told.add((frame.file, frame.line))
    tell(frame)


def _warn(frame: EagerFrame) -> None:
    if rank_of_job() not in (None, 0):
        return  # ranks run the same functions, and one line is enough
    text = f"`{frame.function}` runs without having been checked: {frame.reason}"
    warnings.warn_explicit(text, VerificationWarning, frame.file, frame.line)
