"""A script or module as a job under the environment flag, and the records that it leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from verifycompile.backends.autoload import COMMAND_VARIABLE, FLAG_VARIABLE, FOLDER_VARIABLE, OVERRIDE_VARIABLE
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.read_json import findings_of
from verifycompile.diagnostics.severity import Severity


@dataclasses.dataclass(frozen=True)
class CheckedFrame:
    """One compilation of the job. ``record``: what the backend wrote of it; ``findings``: of its report."""

    record: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """``verified``, ``refuted``, ``unproved``, ``waived``, ``not checked`` or ``failed``."""
        return str(self.record["verdict"])


@dataclasses.dataclass(frozen=True)
class Job:
    """``status``: what the script ended with. ``frames``: of every process, in order of process and compilation.

    ``unneeded``: a sentence for each waiver that no process needed.
    """

    status: int
    frames: tuple[CheckedFrame, ...]
    unneeded: tuple[str, ...] = ()

    @property
    def end(self) -> str:
        """How the script ended, as part of a sentence."""
        by_signal = self.status < 0
        return f"was ended by {signal.Signals(-self.status).name}" if by_signal else f"ended with status {self.status}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of all frames, and of waivers; ranks that find the same are one."""
        found: dict[tuple[object, ...], Finding] = {}
        for frame in self.frames:
            for finding in frame.findings:
                key = (finding.code, finding.message, finding.impl_location, finding.spec_location, finding.output)
                found.setdefault(key, finding)
        return (*found.values(), *(Finding("VC311", Severity.ERROR, sentence) for sentence in self.unneeded))


def run_job(target: Sequence[str], folder: pathlib.Path, *, goes_on: bool, quiet: bool, **environment: str) -> Job:
    """Run ``python TARGET...`` under the flag and read what it leaves in ``folder``, which must be empty.

    ``goes_on``: a refusal is a warning, so that all of them are found. ``quiet``: what the script prints goes to
    standard error. Raises ``OSError`` where Python cannot be started.
    """
    flag = "warn" if goes_on else "1"
    inherited = {name: value for name, value in os.environ.items() if name != OVERRIDE_VARIABLE}
    variables = {FLAG_VARIABLE: flag, FOLDER_VARIABLE: str(folder), COMMAND_VARIABLE: "", **environment}
    status = _ended(
        [sys.executable, *target],
        env={**inherited, **variables},
        stdout=sys.stderr if quiet else None,
    )
    return Job(status, tuple(_frames(folder)), _unneeded(folder))


def _ended(command: Sequence[str], **given: Any) -> int:
    """Run ``command`` and return its exit status. It is not killed, since a launcher has to end its workers itself.

    A terminal interrupts it together with this process. A second interrupt, and a request to terminate, are passed on.
    """
    with subprocess.Popen(command, **given) as process:  # noqa: S603 - the user's own script and interpreter
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            sys.stderr.write("\nverifycompile: waiting for the script to end; interrupt again to terminate it\n")
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()
        process.terminate()
        return process.wait()


def _unneeded(folder: pathlib.Path) -> tuple[str, ...]:
    needed: dict[str, bool] = {}
    for file in sorted(folder.glob("waivers-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            needed[record["sentence"]] = needed.get(record["sentence"], False) or record["needed"]
    return tuple(sentence for sentence, was_needed in needed.items() if not was_needed)


def _frames(folder: pathlib.Path) -> list[CheckedFrame]:
    frames: list[CheckedFrame] = []
    for file in sorted(folder.glob("frames-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            report = record["report"]
            findings = findings_of((folder / report).read_text(encoding="utf-8")) if report else ()
            frames.append(CheckedFrame(record, findings))
    return frames
