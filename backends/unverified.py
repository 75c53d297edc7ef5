"""Runs that no proof speaks of: an error where the gate has accepted the frame before, else a warning, once."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.fx
from torch import nn
from torch.distributed.tensor import Partial

from verifycompile.backends.reports import VerificationWarning, rank_of_job, text_for_this_rank, warn_with_report
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.program import OutputKind, Program, SourceLocation
from verifycompile.torch_interface.data_parallel.outer_ddp import ranks_of_ddp
from verifycompile.torch_interface.dynamo.eager_frames import EagerFrame, Watch, watch_eager_frames
from verifycompile.torch_interface.dynamo.frames import Frame, frame_under_compilation
from verifycompile.torch_interface.dynamo.handed_over import HandedOver, handed_over
from verifycompile.torch_interface.dynamo.whole_program import is_whole_program
from verifycompile.torch_interface.errors import RefinementError
from verifycompile.torch_interface.ranks.numbers_read import watch_numbers_of_partial_dtensors


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
            text = _MAYBE_SUM_FOR_PYTHON if frame.is_unread else _SUM_FOR_PYTHON
            _refuse(text.format(frame.held_sum), only_warns(compiler), place, "VC101", notes)
            return
        if frame.has_no_graph and not frame.was_accepted:
            if asks(compiler):
                raise UsageError("VC310", _NO_GRAPH.format(frame.function))
            return
        limit = _LIMIT.search(frame.reason)
        is_refused = frame.was_accepted or (frame.is_whole and limit is not None and asks(compiler))
        if frame.is_whole and not is_refused and has_spec(compiler):
            raise UsageError("VC305", _IN_PARTS.format(frame.function, frame.reason))
        if frame.breaks_at_once:
            return
        if not is_refused:
            _tell_once(frame, tell or _warn)
            return
        known = "was verified for other inputs" if frame.was_accepted else "was never verified"
        message = f"`{frame.function}` {known} and would run as it is now: {frame.reason}"
        place = SourceLocation(frame.file, frame.line, function=frame.function)
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


def refuse_numbers_of_partial_sums(*, only_warns: bool) -> None:
    """From now on, nothing may read numbers from DTensors that are partial sums."""

    def refuse(location: SourceLocation | None) -> None:
        message = "a number is read from a DTensor that is a partial sum: each rank reads its own part"
        _refuse(message, only_warns, location, "VC101")

    watch_numbers_of_partial_dtensors(refuse)


def without_sums_for_python(
    report: Report, graph: torch.fx.GraphModule, implementation: Program, results: Sequence[str], only_warns: bool
) -> Report:
    """The report, unproved where Python code that is not compiled gets a sum of which each rank has a part.

    ``graph`` is under compilation, ``results`` are the names of what it returns. What follows on its frame after a
    graph break is compiled, and knows what it gets; what the graph break leaves to Python knows nothing. A mean is each
    rank's own loss, which its data-parallel wrapper takes the mean of.
    """
    frame = frame_under_compilation()
    called = {} if not report else _read_at_break(graph, results, handed_over())
    alone = bool(report) and not frame.is_resumption and not is_whole_program(frame.code)
    for output in implementation.outputs:
        is_read = output.kind is OutputKind.VALUE and not output.declared and (alone or output.name in called)
        sums = [item for item in report.placements.get(output.name, ()) if isinstance(item, Partial)]
        if is_read and any(item.reduce_op != "avg" for item in sums):
            line, note = frame.code.co_firstlineno, _GOES_ON_IN_PYTHON.format(frame.function)
            if output.name in called:
                line, note = handed_over().line, _IS_READ.format(frame.function, handed_over().reason)
            finding = Finding(
                code="VC101",
                severity=Severity.WARNING if only_warns else Severity.ERROR,
                message=_SUM_FOR_PYTHON.format(called.get(output.name, output.name)),
                impl_location=SourceLocation(frame.code.co_filename, line, function=frame.function),
                notes=(note,),
            )
            return dataclasses.replace(report, verdict=Verdict.UNPROVED, findings=(finding,), certificate=None)
    return report


def _read_at_break(graph: torch.fx.GraphModule, results: Sequence[str], handed: HandedOver) -> dict[str, str]:
    """Outputs that the instruction at which the graph ends reads, and what the program calls them."""
    nodes: Any = graph.graph.output_node().args[0]
    named = zip((getattr(node, "name", "") for node in nodes), results, strict=True)
    return {name: handed.nodes[node] for node, name in named if node in handed.nodes}


_SUM_FOR_PYTHON = "`{}` is a partial sum, and goes to Python code that nothing checks"
_MAYBE_SUM_FOR_PYTHON = "`{}` cannot be looked at, may be a partial sum, and goes to Python code that nothing checks"
_IS_READ = "`{}` leaves what reads it here to Python code: {}"
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


def warn_of_gradients_nobody_reduces(frame: Frame, inputs: Sequence[Any]) -> None:
    """Where parameters are read that ``DistributedDataParallel`` manages, and its forward does not run."""
    trained = [value for value in inputs if isinstance(value, nn.Parameter) and value.requires_grad]
    if not trained or not torch.is_grad_enabled() or rank_of_job() != 0:
        return
    managed = ranks_of_ddp()
    if any(id(value) in managed for value in trained):
        text = _PAST_WRAPPER.format(frame.function)
        warnings.warn_explicit(text, VerificationWarning, frame.code.co_filename, frame.code.co_firstlineno)


_PAST_WRAPPER = (
    "`{}` reads parameters of a `DistributedDataParallel` whose forward does not run, as in `model.module(x)`: no rank "
    "reduces the gradients of this call, unless that forward runs before the same backward. Call the wrapper"
)


_told: set[tuple[str, str, int]] = set()


def _tell_once(frame: EagerFrame, tell: Callable[[EagerFrame], None]) -> None:
    key = frame.qualified, frame.file, frame.line
    if not dist.is_available() or not dist.is_initialized() or key in _told:
        return
    _told.add(key)
    tell(frame)


def _warn(frame: EagerFrame) -> None:
    if rank_of_job() not in (None, 0):
        return  # ranks run the same functions, and one line is enough
    text = f"`{frame.function}` runs without having been checked: {frame.reason}"
    warnings.warn_explicit(text, VerificationWarning, frame.file, frame.line)
