"""A phase of a run inside of a job ends on every rank, also where one of them raises an error or never comes.

A rank that waits in a collective for another one cannot be interrupted. So the program runs in a thread, and the rank
looks into the job's store meanwhile: where another rank has failed, or has ended it long ago, the rank leaves its
own thread behind, which ends once the ranks that it waits for have left their process group or have ended.
"""

from __future__ import annotations

import atexit
import dataclasses
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from verifycompile.comparison.ranks import Failure, failure_of
from verifycompile.torch_interface.rank_threads.thread_state import thread_state
from verifycompile.torch_interface.ranks.job_store import job_store

AFTER_AN_ERROR = 5.0
"""Seconds that a rank goes on after another one has raised an error: its own error would be the cause."""
_LOOK = 0.05
"""Seconds between two looks into the store."""
_AT_EXIT = 60.0
"""Seconds that a process waits at its end for the threads that it left: none may come back once Python has ended."""
_left: list[threading.Thread] = []
_begun = 0
"""Comparisons that this process has begun. Ranks begin the same ones, so that it names the comparison in the store."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a rank's phase gave, or why it gave nothing."""

    value: Any = None
    failure: Failure | None = None

    @classmethod
    def of(cls, phase: Callable[[], Any]) -> Ended:
        """Do it here."""
        try:
            return Ended(phase())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - told to the rank that leads, which ends the comparison
            return Ended(failure=failure_of(error))


class Phases:
    """Of one comparison on this rank. ``patience``: seconds that it goes on after another rank has ended the phase."""

    def __init__(self, patience: float) -> None:
        global _begun  # noqa: PLW0603 - one process has one place in its job
        _begun += 1
        store = job_store()
        self._store = None if store is None else dist.PrefixStore(f"verifycompile/compare/{_begun}", store)
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._patience = patience
        self._number = 0

    def run(self, phase: Callable[[], Any]) -> Ended:
        """Do the next phase; every rank has as many."""
        self._number += 1
        if self._store is None:
            return Ended.of(phase)
        state, done = thread_state(), list[Ended]()

        def run() -> None:
            with state.entered():
                done.append(Ended.of(phase))

        thread = threading.Thread(target=run, daemon=True, name="verifycompile compare")
        thread.start()
        waited = self._waited_for(thread)
        if waited is not None:
            _leave(thread)
        ended = done[0] if waited is None else Ended(failure=waited)
        failed = ended.failure is not None and not ended.failure.waited
        self._store.set(f"{self._number}/ended/{self._rank}", pickle.dumps(ended.failure))  # pyright: ignore[reportArgumentType] - a store takes bytes as well
        self._store.add(f"{self._number}/ended", 1)
        self._store.add(f"{self._number}/failed", int(failed))
        return ended

    def failed_anywhere(self, own: Ended) -> tuple[int, Failure] | None:
        """The rank that failed in the last phase, once all have ended it; the same answer on all ranks."""
        if self._store is None:
            return None if own.failure is None else (self._rank, own.failure)
        self._wait_for_all("ended", self._patience + AFTER_AN_ERROR)
        failed: dict[int, Failure] = {}
        for rank in range(self._size):
            key = f"{self._number}/ended/{rank}"
            if not self._store.check([key]):
                failed[rank] = Failure("its process does not answer", waited=True)
            elif (failure := pickle.loads(self._store.get(key))) is not None:  # noqa: S301 - of this job's own ranks
                failed[rank] = failure
        if failed:
            # The process of the first rank may hold the store, and end next.
            self._store.add(f"{self._number}/read", 1)
            if self._rank == 0:
                self._wait_for_all("read", AFTER_AN_ERROR)
        return min(failed.items(), key=lambda item: (item[1].waited, item[0]), default=None)

    def _wait_for_all(self, what: str, seconds: float) -> None:
        assert self._store is not None
        deadline = time.monotonic() + seconds
        while self._store.add(f"{self._number}/{what}", 0) < self._size and time.monotonic() < deadline:
            time.sleep(_LOOK)

    def _waited_for(self, thread: threading.Thread) -> Failure | None:
        """Why the thread is left behind; None where it has ended."""
        assert self._store is not None
        failed: float | None = None
        ended: float | None = None
        while True:
            thread.join(_LOOK)
            now = time.monotonic()
            if not thread.is_alive():
                return None
            if failed is None and self._store.add(f"{self._number}/failed", 0):
                failed = now
            if ended is None and self._store.add(f"{self._number}/ended", 0):
                ended = now
            if failed is not None and now - failed > AFTER_AN_ERROR:
                return Failure("it waits for a rank that has failed", waited=True)
            if ended is not None and now - ended > self._patience:
                text = f"another rank ended it {self._patience:g} seconds ago"
                return Failure(text, waited=True)


def _leave(thread: threading.Thread) -> None:
    if not _left:
        atexit.register(_wait_for_left)
    _left.append(thread)


def _wait_for_left() -> None:
    deadline = time.monotonic() + _AT_EXIT
    for thread in _left:
        thread.join(max(0.0, deadline - time.monotonic()))
