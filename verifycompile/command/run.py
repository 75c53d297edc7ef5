"""``verifycompile run``: a script under the flag, and one exit status for all that it compiled."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

from verifycompile.backends.autoload import COMMAND_VARIABLE, FOLDER_VARIABLE
from verifycompile.command.formats import DOCUMENTS, FORMATS
from verifycompile.command.job import Job, run_job
from verifycompile.diagnostics.describe import plural

VERIFIED, REFUSED, FAILED = 0, 1, 2
"""Exit statuses: all verified or waived; a finding, or a waiver that is not needed; misuse, a failure of the script or
of the check, or nothing to check.
"""


def run(target: Sequence[str], form: str, reports: str | None, *, goes_on: bool) -> tuple[int, str, str]:
    """The exit status, what to print, and what to say on standard error.

    ``reports``: a folder that gets the reports as well; by default that of the environment variable. Raises ``OSError``
    where it cannot be written.
    """
    reports = os.environ.get(FOLDER_VARIABLE) if reports is None else reports
    if reports:
        pathlib.Path(reports).mkdir(parents=True, exist_ok=True)  # a job is long: what is wrong here is said before it
    with tempfile.TemporaryDirectory(prefix="verifycompile-") as name:
        folder = pathlib.Path(name)
        told = {COMMAND_VARIABLE: reports or ""}
        job = run_job(target, folder, goes_on=goes_on, quiet=form in DOCUMENTS, **told)
        if reports:
            shutil.copytree(folder, reports, dirs_exist_ok=True)
    status, said = judged(job)
    # With `full` a job that stops at its first finding has printed it already.
    printed = "" if form == "full" and not goes_on else FORMATS[form](job)
    return status, printed, "" if said in printed else said


_COMPILED_NOTHING = (
    "the script compiled nothing, and `run` checks what `torch.compile` builds; a script that asks "
    "`verifycompile.verify` itself gets its report there: run it with `python`"
)


def judged(job: Job) -> tuple[int, str]:
    """The exit status, and a sentence that says why it is not what one would expect of the findings."""
    verdicts = {frame.verdict for frame in job.frames}
    if not verdicts.isdisjoint(("refuted", "unproved")):
        return REFUSED, ""
    if job.unneeded:
        return REFUSED, job.unneeded[0]
    if "failed" in verdicts:
        return FAILED, "a graph could not be checked; the script's own messages say why."
    if job.status != 0:
        if not verdicts:
            return FAILED, f"the script {job.end} before it compiled anything."
        checked = "verified" if "verified" in verdicts else "not parallel"
        return FAILED, f"the script {job.end}; what it compiled until then was {checked}."
    waived = sum(frame.verdict == "waived" for frame in job.frames)
    if waived:
        return VERIFIED, f"{plural(waived, 'frame')} waived and not verified."
    if "verified" not in verdicts:
        reason = _COMPILED_NOTHING if not verdicts else "no graph that the script compiled is parallel"
        return FAILED, f"nothing was checked: {reason}."
    return VERIFIED, ""
