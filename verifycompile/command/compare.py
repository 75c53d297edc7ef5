"""``verifycompile compare``: both programs of a question in a file, run on all ranks and compared."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch.distributed as dist

from verifycompile.comparison import compare
from verifycompile.comparison.report import CompareReport
from verifycompile.errors import UsageError
from verifycompile.torch_interface.ranks.fake_groups import fake_process_group
from verifycompile.torch_interface.ranks.job_store import job_store
from verifycompile.torch_interface.source_lines.source import raising_line

_TOLD = "verifycompile/compare/told"
_SECONDS = 60.0
"""That a process waits for the one that tells: a launcher ends all processes once one has ended with a finding."""


def compare_question(target: str, ranks: int, tell: Callable[[CompareReport], None]) -> CompareReport:
    """The report on ``FILE.py:FUNCTION``, which one process ``tell``s before any of them returns.

    The function returns the arguments of ``verifycompile.compare`` as a dictionary. Under a launcher that sets the
    environment variable ``WORLD_SIZE`` the processes are the ranks; else this process stands for ``ranks`` ranks.
    Raises ``UsageError`` where there is no such function, and where the question is incomplete.
    """
    file, _, name = target.rpartition(":")
    if not file or not pathlib.Path(file).is_file():
        raise UsageError("VC306", f"`{target}` must be FILE.py:FUNCTION, with a file that is there.")
    launched = "WORLD_SIZE" in os.environ
    if ranks < 1:
        raise UsageError("VC306", f"option `--ranks` must be a number of ranks greater than zero, not {ranks}.")
    with _launched_group() if launched else fake_process_group(ranks, 0):
        function = _function_of(pathlib.Path(file), name)
        with _errors_told(f"`{name}`"):
            arguments = function()
        if not isinstance(arguments, Mapping):
            raise UsageError("VC306", f"`{name}` must return the arguments of `verifycompile.compare` as a dictionary.")
        report = compare(**arguments)
        store = job_store()
        if store is None or dist.get_rank() == 0:
            tell(report)
        if store is not None and dist.get_rank() == 0:
            store.set(_TOLD, "")
        elif store is not None:
            with contextlib.suppress(dist.DistError):
                store.wait([_TOLD], dt.timedelta(seconds=_SECONDS))
        return report


@contextlib.contextmanager
def _launched_group() -> Any:
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _errors_told(what: str) -> Generator[None]:
    """Raises ``UsageError`` VC306 for whatever the user's own code raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = raising_line(error)
        where = "" if place is None else f" at {pathlib.Path(place.file).name}:{place.line}"
        raise UsageError("VC306", f"{what} fails{where}: {type(error).__name__}: {error}") from error


def _function_of(file: pathlib.Path, name: str) -> Callable[[], Any]:
    """As ``python FILE`` would find what the file imports."""
    sys.path.insert(0, str(file.parent.resolve()))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise UsageError("VC306", f"`{file}` is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    with _errors_told(f"`{file}`, which is imported here (what trains stands under `if __name__ == \"__main__\"`),"):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError("VC306", f"`{file}` has no function `{name}`.")
    return function
