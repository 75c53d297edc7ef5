"""All ranks of a pretended job in one process: a thread for each, which take turns, and which really communicate."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from verifycompile.torch_interface.rank_threads.late_results import late
from verifycompile.torch_interface.rank_threads.meetings import FACTORS_TOLD, Communication, Parts
from verifycompile.torch_interface.rank_threads.random_streams import RandomStreams, seed_all
from verifycompile.torch_interface.rank_threads.thread_state import ThreadState, thread_state
from verifycompile.torch_interface.ranks.acting_rank import acting_as
from verifycompile.torch_interface.ranks.mesh import RootMesh, has_world
from verifycompile.torch_interface.replaced import replaced

Result = TypeVar("Result")


class RanksWaitError(Exception):
    """The ranks wait for one another without end, or meet in different collectives. ``waiting``: rank -> for what."""

    def __init__(self, message: str, waiting: dict[int, str]) -> None:
        super().__init__(message)
        self.waiting = waiting


class _EndedError(BaseException):
    """Ends the thread of a rank because another rank failed. Not an ``Exception``: no program may catch it."""


@dataclasses.dataclass
class _Meeting:
    """A collective that some of its members have reached."""

    what: dict[int, str] = dataclasses.field(default_factory=dict[int, str])
    given: dict[int, Any] = dataclasses.field(default_factory=dict[int, Any])
    result: Any = None
    has_met: bool = False


class _Rank(Generic[Result]):
    """A rank's thread; it implements ``meetings.Place``."""

    def __init__(self, rank: int, job: _Job[Result], function: Callable[[int], Result], state: _Random) -> None:
        self.rank = rank
        self.job = job
        self.turn = threading.Semaphore(0)
        self.state = state
        self.active_ddp: DistributedDataParallel | None = None  # whose forward runs, which torch keeps for a process
        self.blocked: Callable[[], bool] | None = None
        self.waits_for = ""
        self.finished = False
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.calls: collections.Counter[tuple[int, ...]] = collections.Counter()
        self.thread = threading.Thread(target=self._run, args=(function, thread_state()), daemon=True)

    def _run(self, function: Callable[[int], Result], starter: ThreadState) -> None:
        self.turn.acquire()
        try:
            if self.job.ended:
                return
            with starter.entered(), Communication(self):
                self.result = function(self.rank)
        except _EndedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that started this one
            self.error = error
        finally:
            self.finished = True
            self.job.back.release()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Let other ranks run until ``until`` holds."""
        if until():
            return
        self.blocked, self.waits_for = until, what
        self.job.back.release()
        self.turn.acquire()
        self.blocked = None
        if self.job.ended:
            raise _EndedError

    def meet(self, members: tuple[int, ...], what: str, given: Any, combine: Callable[[Parts], Any]) -> Any:
        number = self.calls[members]
        self.calls[members] += 1
        meeting = self.job.meetings.setdefault((members, number), _Meeting())
        meeting.what[self.rank], meeting.given[self.rank] = what, given
        if len(meeting.given) == len(members):
            if len(set(meeting.what.values())) > 1:
                said = ", ".join(f"rank {rank} calls {meeting.what[rank]}" for rank in members)
                raise RanksWaitError(f"the ranks meet in different collectives: {said}", dict(meeting.what))
            meeting.result, meeting.has_met = combine([meeting.given[rank] for rank in members]), True
        self.wait(lambda: meeting.has_met, what)
        del meeting.given[self.rank]
        if not meeting.given:
            self.job.meetings.pop((members, number), None)
        return meeting.result

    def send(self, key: tuple[Any, ...], value: torch.Tensor) -> None:
        self.job.messages.setdefault(key, collections.deque()).append(value)

    def receive(self, key: tuple[Any, ...]) -> torch.Tensor:
        messages = self.job.messages.setdefault(key, collections.deque())
        self.wait(lambda: bool(messages), f"a message of rank {key[0]}")
        return messages.popleft()


class _Random:
    """The random streams of one rank."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: RandomStreams | None = None

    @contextlib.contextmanager
    def installed(self) -> Generator[None]:
        before = RandomStreams.now()
        if self._own is None:
            seed_all(self._seed)
        else:
            self._own.install()
        try:
            yield
        finally:
            self._own = RandomStreams.now()
            before.install()


class _Job(Generic[Result]):
    """One run of all ranks."""

    def __init__(self) -> None:
        self.back = threading.Semaphore(0)
        self.meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self.messages: dict[tuple[Any, ...], collections.deque[torch.Tensor]] = {}
        self.ended = False


class RanksInThreads:
    """The ranks of ``root``, or the one rank of a process without a job where it is None.

    One thread runs at a time, and another one only where it waits for others, so that every run is the same. Each rank
    has random streams of its own, which all begin with ``seed`` and go on from one run to the next. ``failed``: the
    rank whose error ended a run.
    """

    def __init__(self, root: RootMesh | None, seed: int) -> None:
        self._root = root
        self.ranks: tuple[int, ...] = (0,) if root is None else root.description.ranks
        self._random = {rank: _Random(seed) for rank in self.ranks}
        self.failed: int | None = None

    def run(self, function: Callable[[int], Result]) -> dict[int, Result]:
        """What ``function`` returns as each rank. Raises what a rank raises, ``RanksWaitError`` where they hang."""
        job: _Job[Result] = _Job()
        active = DistributedDataParallel._active_ddp_module
        threads = [_Rank(rank, job, function, self._random[rank]) for rank in self.ranks]
        for thread in threads:
            thread.thread.start()
        try:
            self._take_turns(job, threads)
        finally:
            job.ended = True
            for thread in threads:
                if not thread.finished:
                    thread.turn.release()
                thread.thread.join()
            DistributedDataParallel._active_ddp_module = active
        return {thread.rank: thread.result for thread in threads}  # type: ignore[misc]  # None where the call returns it

    def _take_turns(self, job: _Job[Result], threads: list[_Rank[Result]]) -> None:
        while any(not thread.finished for thread in threads):
            ready = [t for t in threads if not t.finished and (t.blocked is None or t.blocked())]
            if not ready:
                waiting = {thread.rank: thread.waits_for for thread in threads if not thread.finished}
                said = ", ".join(f"rank {rank} for {what}" for rank, what in waiting.items())
                raise RanksWaitError(f"the ranks wait without end: {said}", waiting)
            for thread in ready:
                with thread.state.installed(), self._acting(thread.rank):
                    DistributedDataParallel._active_ddp_module = thread.active_ddp
                    thread.turn.release()
                    job.back.acquire()
                    thread.active_ddp = DistributedDataParallel._active_ddp_module
                if thread.error is not None:
                    self.failed = thread.rank
                    raise thread.error

    @contextlib.contextmanager
    def _acting(self, rank: int) -> Generator[None]:
        if self._root is None or not has_world():
            yield
            return
        # Here the collectives that have a root do communicate.
        own = {name: vars(dist.ProcessGroup)[name] for name in ("scatter", "gather")}
        communicating = replaced([*late(own), *FACTORS_TOLD])
        with acting_as(rank, self._root), communicating:
            yield
