"""A function on a few real processes, joined by gloo over the loopback interface."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import multiprocessing
import os
import pathlib
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import torch.distributed as dist

SECONDS = 300.0
"""How long the ranks may take together unless a test says otherwise."""

LOOK = 0.5
"""Seconds between two looks at whether the processes are still there."""
LAST_WORDS = 5.0
"""Seconds for which the answer of a process that has ended is waited for."""
FAREWELL = 60.0
"""Seconds that processes have to end by themselves once all have answered: one that is terminated leaves semaphores."""


class RankError(AssertionError):
    """A rank raised, or none of them answered in time. ``rank``: the first that raised; its traceback is the text."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank}: {text}")
        self.rank = rank


def run_on_ranks(function: Callable[..., Any], world_size: int, *arguments: Any, seconds: float = SECONDS) -> list[Any]:
    """``function(rank, *arguments)`` on each of ``world_size`` processes; what they return, by rank.

    The function, its arguments and its results must be picklable: a function of a module, no lambda. Each process has
    the default process group when it is called. Raises ``RankError`` where one raises or time runs out, ``ValueError``
    for a function that cannot go there; no process outlives the call.
    """
    if not isinstance(world_size, int) or world_size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # not everyone checks types
        raise ValueError(f"`world_size` must be a number of processes greater than zero, not {world_size!r}.")
    try:
        pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        text = f"the function and its arguments go to other processes: give functions of modules, no lambda ({error})."
        raise ValueError(text) from None
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory(prefix="verifycompile-") as folder:
        store, timeout = str(pathlib.Path(folder) / "store"), dt.timedelta(seconds=seconds)
        places = [_Rank(rank, world_size, store, timeout) for rank in range(world_size)]
        processes = [context.Process(target=_run, args=(function, place, arguments, results)) for place in places]
        for process in processes:
            process.start()
        try:
            found = _collected(results, processes, seconds)
            for process in processes:
                process.join(FAREWELL)
            return found
        finally:
            for process in processes:
                process.terminate()
                process.join()


def _collected(results: Any, processes: Sequence[BaseProcess], seconds: float) -> list[Any]:
    found: dict[int, Any] = {}
    end = time.monotonic() + seconds
    while len(found) < len(processes):
        absent = [rank for rank in range(len(processes)) if rank not in found]
        ended = next((rank for rank in absent if processes[rank].exitcode is not None), None)
        try:
            # What a process has written before it ended arrives soon after.
            left = max(end - time.monotonic(), 0.0)
            rank, error, value = results.get(timeout=min(left, LAST_WORDS if ended is not None else LOOK))
        except queue.Empty:
            if ended is not None:
                raise _ended(ended, processes[ended]) from None
            if time.monotonic() >= end:
                raise RankError(absent[0], f"no answer within {seconds:g} s.") from None
            continue
        if error:
            # What a process that ended does to its peers' collectives is not what went wrong.
            ended = next((other for other in absent if processes[other].exitcode not in (None, 0)), None)
            raise RankError(rank, error) if ended is None else _ended(ended, processes[ended])
        found[rank] = value
    return [found[rank] for rank in range(len(processes))]


def _ended(rank: int, process: BaseProcess) -> RankError:
    return RankError(rank, f"its process ended with exit status {process.exitcode} before `function` returned.")


@dataclasses.dataclass(frozen=True)
class _Rank:
    rank: int
    world_size: int
    store: str
    timeout: dt.timedelta


def _run(function: Callable[..., Any], place: _Rank, arguments: tuple[Any, ...], results: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{place.store}",
            rank=place.rank,
            world_size=place.world_size,
            timeout=place.timeout,
        )
        value = function(place.rank, *arguments)
    except BaseException:  # noqa: BLE001 - the test that waits for this rank is told
        results.put((place.rank, traceback.format_exc(), None))
        return
    results.put((place.rank, "", value))
    with contextlib.suppress(RuntimeError):  # a peer that failed is told by its own words, not by this rank's end
        dist.barrier()  # the others may still need this rank's store
        dist.destroy_process_group()
