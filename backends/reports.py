"""Where reports go besides the error: warnings, the folder ``VERIFYCOMPILE_REPORT``, torch's structured trace."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import torch.distributed as dist

from verifycompile.backends.autoload import COMMAND_VARIABLE, FOLDER_VARIABLE
from verifycompile.diagnostics.render_concise import render_finding
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.torch_interface.dynamo.backend import compile_id, record_artifact


class VerificationWarning(UserWarning):
    """A graph runs although it was not verified, because the user asked for that."""


def warn_with_report(report: Report, ranks: Sequence[int] = (0,)) -> None:
    """Warn with the report, at the user's line that it is about. ``ranks``: see ``text_for_this_rank``."""
    _warn(text_for_this_rank(report, ranks), report)


def warn_with_error(error: Exception) -> None:
    """Warn that a graph was not checked at all."""
    _warn(str(error), None)


def text_for_this_rank(report: Report, ranks: Sequence[int] = (0,)) -> str:
    """The report in full on one of ``ranks``, which find the same, and outside of jobs; on others a line."""
    rank = rank_of_job()
    return str(report) if rank in (None, printing_rank(report, ranks)) else line_of(report, ranks)


def printing_rank(report: Report, ranks: Sequence[int]) -> int:
    """The one of ``ranks`` that prints the report: the first that captured another program than most, or the first."""
    return min(report.differing_ranks or ranks)


def line_of(report: Report, ranks: Sequence[int]) -> str:
    """What the other ranks say: the place, and who prints the report."""
    printing = printing_rank(report, ranks)
    return f"{render_finding(report.findings[0])} (rank {rank_of_job()}; rank {printing} prints the report)"


def keep_report(report: Report) -> str:
    """Add the report to the structured trace, and to the report folder where one is named; its file there, or "".

    Raises ``UsageError`` VC306 where that folder cannot be written.
    """
    record_artifact("verify_report", report.to_json)
    rank = rank_of_job()
    name = f"graph-{compile_id().replace('/', '-')}" + ("" if rank is None else f"-rank{rank}")
    with _report_folder() as folder:
        if folder is None:
            return ""
        file = _new_file(folder, f"{name}-{os.getpid()}")
        file.write_text(report.to_json(), encoding="utf-8")
        report.save_html(file.with_suffix(".html"))
    return file.name


def _new_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A file of its own: other processes keep reports there, and Dynamo counts from 0 again after a reset."""
    file, number = folder / f"{name}.json", 1
    while file.exists():
        number += 1
        file = folder / f"{name}-{number}.json"
    return file


def keep_line(kind: str, record: Any) -> None:
    """Add a line of JSON to this process's file of a kind in the report folder, where one is named.

    Raises ``UsageError`` VC306 where that folder cannot be written.
    """
    with _report_folder() as folder:
        if folder is not None:
            with (folder / f"{kind}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")


@contextlib.contextmanager
def _report_folder() -> Generator[pathlib.Path | None]:
    """The folder of the environment variable, made where it is not there; None where none is named.

    That of ``verifycompile run`` is there as long as the command: a rank that outlives it leaves nothing behind.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    folder = pathlib.Path(named or "")
    if not named or (COMMAND_VARIABLE in os.environ and not folder.is_dir()):
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        text = f"no report can be kept: {error}. Set the variable {FOLDER_VARIABLE} to a folder that can be written."
        raise UsageError("VC306", text) from error


def rank_of_job() -> int | None:
    """This process's rank, or None where it is alone: a fake process group plays all ranks in one process."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_backend() == "fake":
        return None
    return dist.get_rank()


def _warn(text: str, report: Report | None) -> None:
    first = report.findings[0] if report is not None else None
    location = None if first is None else first.impl_location or first.spec_location
    if location is None:
        warnings.warn(text, VerificationWarning, stacklevel=2)
        return
    warnings.warn_explicit(text, VerificationWarning, location.file, location.line)
