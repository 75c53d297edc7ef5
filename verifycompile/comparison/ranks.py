"""The ranks of a comparison: what it asks of them, wherever they are, and all of them as threads of this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from verifycompile.comparison.worker import Worker
from verifycompile.errors import UsageError
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.dynamo.eager_frames import uncompiled
from verifycompile.torch_interface.dynamo.own_compilation import OwnCompilation
from verifycompile.torch_interface.rank_threads.ranks_in_threads import RanksInThreads, RanksWaitError
from verifycompile.torch_interface.source_lines.source import raising_line

READS = frozenset({"value", "parameter", "input_part", "places", "drop", "turn"})
"""Methods that run nothing of the program."""
MakeWorker = Callable[[int], Worker]


@dataclasses.dataclass(frozen=True)
class Failure:
    """What ended a rank's part: an error of the program, raised at ``place``, or that it did not end in time."""

    message: str
    place: SourceLocation | None = None
    waited: bool = False


class RankFailedError(Exception):
    """The program raised an error on ``rank``, or did not end there; None where it is no rank's own."""

    def __init__(self, rank: int | None, failure: Failure) -> None:
        super().__init__(failure.message)
        self.rank = rank
        self.failure = failure


class Ranks(Protocol):
    """Calls methods of all ranks' workers and gives what they return, by rank. Raises ``RankFailedError``.

    ``left_uncompiled``: whether a compiled program was called, which ran as Python runs it.
    """

    ranks: tuple[int, ...]
    how: str
    left_uncompiled: bool

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        """``method`` of every worker, with ``common`` arguments and those that are a rank's own."""
        ...


class InThisProcess:
    """All ranks are threads of this process."""

    def __init__(self, threads: RanksInThreads, make: MakeWorker) -> None:
        self._threads = threads
        self.ranks = threads.ranks
        self.how = "all ranks in one process, a thread each, which take turns"
        self.left_uncompiled = False
        self._compilations = {rank: OwnCompilation() for rank in self.ranks}
        self._workers = self._run(make)

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        if method in READS:
            return {rank: getattr(worker, method)(*common) for rank, worker in self._workers.items()}

        def called(rank: int) -> Any:
            own = () if each is None else each[rank]
            return getattr(self._workers[rank], method)(*common, *own)

        def called_as_compiled(rank: int) -> Any:
            with self._compilations[rank].entered():
                return called(rank)

        if any(worker.compiles for worker in self._workers.values()):
            with _failures(self._threads):
                return self._threads.run(called_as_compiled)
        return self._run(called)

    def worker(self, rank: int) -> Worker:
        return self._workers[rank]

    def _run(self, part: Callable[[int], Any]) -> dict[int, Any]:
        with uncompiled() as left, _failures(self._threads):
            result = self._threads.run(part)
        self.left_uncompiled |= left.any
        return result


@contextlib.contextmanager
def _failures(threads: RanksInThreads) -> Generator[None]:
    try:
        yield
    except UsageError:
        raise
    except RanksWaitError as error:
        raise RankFailedError(None, Failure(str(error), waited=True)) from error
    except Exception as error:
        raise RankFailedError(threads.failed, failure_of(error)) from error


def failure_of(error: BaseException) -> Failure:
    """An error that the program raised, with the last line of the user's code that it passed."""
    return Failure(f"{type(error).__name__}: {error}", raising_line(error))
