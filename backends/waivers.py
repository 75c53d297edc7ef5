"""Which waivers of this process were needed, told when it ends: one that waives nothing is a finding."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import sys
import warnings
from collections.abc import Sequence

from verifycompile.backends.autoload import COMMAND_VARIABLE, WAIVERS_VARIABLE
from verifycompile.backends.reports import VerificationWarning, keep_line, rank_of_job
from verifycompile.diagnostics.render_concise import render_finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.waiver import Waiver, sentence_of_unused, unused, with_waivers
from verifycompile.waivers import waivers_in

_needed: dict[Waiver, bool] = {}


@functools.cache
def waivers_of_job() -> tuple[Waiver, ...]:
    """Those of the file that the environment names, else of the project's settings where the job was started.

    Raises ``UsageError`` VC311.
    """
    named = os.environ.get(WAIVERS_VARIABLE)
    if named:
        return waivers_in(pathlib.Path(named))
    project = pathlib.Path("pyproject.toml")
    return waivers_in(project) if project.is_file() else ()


def apply_waivers(report: Report, waivers: Sequence[Waiver]) -> Report:
    """The report with its waived findings marked; which waivers that took is remembered."""
    if waivers and not _needed:
        atexit.register(_tell_unused)
    spare = unused(waivers, (report,))
    for waiver in waivers:
        _needed[waiver] = _needed.get(waiver, False) or waiver not in spare
    return with_waivers(report, waivers)


def warn_of_waived(report: Report) -> None:
    """A line for each finding of a graph that runs although it is not verified. Ranks find the same: one tells it."""
    if rank_of_job() not in (None, 0):
        return
    for finding in report.findings:
        warnings.warn(f"{render_finding(finding)} (waived: {finding.waived})", VerificationWarning, stacklevel=2)


def _tell_unused() -> None:
    is_told = os.environ.get("RANK", "0") == "0" and COMMAND_VARIABLE not in os.environ
    for waiver, was_needed in _needed.items():
        sentence = sentence_of_unused(waiver)
        keep_line("waivers", {"needed": was_needed, "sentence": sentence})
        if not was_needed and is_told:
            sys.stderr.write(f"verifycompile: {sentence}\n")
