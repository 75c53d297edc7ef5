"""Verification under the limits that the options set, with an account of where its time went."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from verifycompile import bounds
from verifycompile.bounds import Bounds, Limits
from verifycompile.diagnostics.report import Report, noted
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.process_memory import peak_memory, resident_memory

TIME_OVER_CAPTURE = 10
LEAST_SECONDS = 120.0
LEAST_MEMORY = 4 << 30


def limits_of(options: Options, capture_seconds: float) -> Limits:
    """The limits given, else ten times what capture took, at least two minutes; and as much memory as there is in use
    after capture, at least 4 GiB.
    """
    seconds, memory = options.time_limit, options.memory_limit
    return Limits(
        max(LEAST_SECONDS, TIME_OVER_CAPTURE * capture_seconds) if seconds is None else seconds,
        max(LEAST_MEMORY, resident_memory()) if memory is None else memory,
    )


def within_limits(options: Options, capture_seconds: float, work: Callable[[], Report]) -> Report:
    """The report that ``work`` makes, with all the time that it took. What is limited already stays as it is."""
    if bounds.current() is not None:
        return work()
    started = time.perf_counter()
    with bounds.limited(limits_of(options, capture_seconds)) as limited:
        report = work()
    stats = dataclasses.replace(
        report.stats,
        verification_seconds=time.perf_counter() - started,
        peak_memory=peak_memory(),
        attempts=tuple(limited.stages),
    )
    return dataclasses.replace(_with_account(report, limited), stats=stats)


def _with_account(report: Report, limited: Bounds) -> Report:
    """Where a limit ended something and nothing is proved: what was tried, and how the limits are set."""
    tried = [stage for stage in limited.stages if stage.depth == 1]
    if report.verdict is not Verdict.UNPROVED or all(stage.finished for stage in tried):
        return report
    account = (
        f"tried: {'; '.join(stage.describe() for stage in tried)}",
        f"the limits are {limited.limits.describe()}; the options `time_limit` and `memory_limit` set them",
    )
    return noted(report, *account)
