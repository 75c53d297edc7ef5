"""The ranks of a comparison: all of them in this process, or one in each process of a running job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from verifycompile.comparison.worker import Worker
from verifycompile.torch_interface.ranks_in_threads import RanksInThreads

_READS = frozenset({"value", "parameter", "input_part", "places", "drop", "turn"})
"""Methods that run nothing of the program."""
MakeWorker = Callable[[int], Worker]


class RankFailedError(Exception):
    """The program raised an error on a rank. ``rank``: -1 where it is none's own."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class Ranks(Protocol):
    """Calls methods of all ranks' workers and gives what they return, by rank."""

    ranks: tuple[int, ...]
    how: str

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        """``method`` of every worker, with ``common`` arguments and those that are a rank's own."""
        ...


class InThisProcess:
    """All ranks are threads of this process."""

    def __init__(self, threads: RanksInThreads, make: MakeWorker) -> None:
        self._threads = threads
        self.ranks = threads.ranks
        self.how = "all ranks in one process, a thread each, which take turns"
        with torch.compiler.set_stance("force_eager"):
            self._workers = threads.run(make)

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        if method in _READS:
            return {rank: getattr(worker, method)(*common) for rank, worker in self._workers.items()}

        def called(rank: int) -> Any:
            own = () if each is None else each[rank]
            return getattr(self._workers[rank], method)(*common, *own)

        with torch.compiler.set_stance("force_eager"):
            return self._threads.run(called)

    def worker(self, rank: int) -> Worker:
        return self._workers[rank]


class InTheJob:
    """Every process is a rank: the first one leads, the others ``follow`` it, over a process group of their own."""

    def __init__(self, make: MakeWorker) -> None:
        self.ranks = tuple(range(dist.get_world_size()))
        self.how = "on the ranks of the running job"
        self._own = dist.get_rank()
        self._group: Any = dist.new_group(backend="gloo")
        self._worker = make(self._own)

    @property
    def leads(self) -> bool:
        return self._own == 0

    def call(self, method: str, *common: Any, each: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        self._tell((method, common))
        own: list[Any] = [None]
        arguments = [() if each is None else each[rank] for rank in self.ranks]
        dist.scatter_object_list(own, arguments, src=0, group=self._group)
        return self._gathered(self._do(method, common, own[0]))

    def follow(self) -> Any:
        """Do what the first rank asks for, until it gives what all shall return."""
        while True:
            method, common = self._told()
            if method is None:
                return common
            own: list[Any] = [None]
            dist.scatter_object_list(own, None, src=0, group=self._group)
            self._gathered(self._do(method, common, own[0]))

    def dismiss(self, result: Any) -> None:
        """What the followers shall return."""
        self._tell((None, result))

    def close(self) -> None:
        dist.destroy_process_group(self._group)

    def _do(self, method: str, common: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
        try:
            return getattr(self._worker, method)(*common, *own)
        except Exception as error:  # noqa: BLE001 - told to the rank that leads, which ends the comparison
            return _Failed(f"{type(error).__name__}: {error}")

    def _tell(self, message: Any) -> None:
        dist.broadcast_object_list([message], src=0, group=self._group)

    def _told(self) -> Any:
        received: list[Any] = [None]
        dist.broadcast_object_list(received, src=0, group=self._group)
        return received[0]

    def _gathered(self, value: Any) -> dict[int, Any]:
        received: list[Any] | None = [None] * len(self.ranks) if self.leads else None
        dist.gather_object(value, received, dst=0, group=self._group)
        for rank, item in enumerate(received or ()):
            if isinstance(item, _Failed):
                raise RankFailedError(rank, item.message)
        return dict(enumerate(received or ()))


class _Failed:
    def __init__(self, message: str) -> None:
        self.message = message


@contextlib.contextmanager
def errors_of_ranks() -> Generator[None]:
    """While entered, whatever the program raises is a ``RankFailedError``."""
    try:
        yield
    except RankFailedError:
        raise
    except Exception as error:
        raise RankFailedError(-1, f"{type(error).__name__}: {error}") from error
