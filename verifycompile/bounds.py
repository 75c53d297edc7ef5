"""Limits of time and memory over everything that follows capture.

The verifying thread asks ``check()`` wherever it goes on: at every node that is lowered or evaluated, every term that
is built, every question to a solver. A thread beside it watches the process's memory, and is the last resort for work
that asks nothing: half a second past a limit it raises in the verifying thread, as Ctrl-C does, between two
instructions. A call into a library is not interrupted; the libraries have limits of their own (questions to the
solver, rounds of the e-graph, elements of an evaluation).

What a limit ends is said: ``attempt`` returns the value of the work, or ``RanOut`` with the name of the stage.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeVar

import torch

from verifycompile.ir import limit
from verifycompile.process_memory import release_free_memory, resident_memory

Value = TypeVar("Value")

_INTERVAL = 0.05
GRACE = 0.5
"""Seconds past a limit after which work that does not ask is interrupted; again after four times as many."""
_NO_TIME = 0.001
"""Seconds in which nothing is done."""
_OWN_STATE = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parent / 'torch_interface'}{os.sep}",
    contextlib.__file__,
)
"""Beginnings of the files whose functions are not interrupted."""
_OF_CONTEXTS = frozenset({"__enter__", "__exit__"})


class LimitReachedError(BaseException):
    """A limit is reached. No ``Exception``: what handles errors of the work on its way must not take it for one."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """``seconds`` of wall-clock time, and ``memory``: bytes by which the process may grow."""

    seconds: float
    memory: int

    def describe(self) -> str:
        """As a message has them."""
        return f"{show_seconds(self.seconds)} and {show_bytes(self.memory)}"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the work that was done: what it was, how long it took, and whether it came to its end.

    ``depth``: 1 for one that is part of no other one.
    """

    name: str
    seconds: float
    finished: bool
    depth: int = 1

    def describe(self) -> str:
        """As a message has it."""
        if not self.finished and self.seconds < _NO_TIME:
            return f"{self.name} (not begun)"
        return f"{self.name} ({show_seconds(self.seconds)}{'' if self.finished else ', cut short'})"


@dataclasses.dataclass(frozen=True)
class RanOut:
    """``stage`` was ended after ``seconds`` by a limit, which ``limit`` names.

    ``place``: what the work was at, see ``note_place``.
    """

    stage: str
    seconds: float
    limit: str
    place: object = None

    def describe(self) -> str:
        """As a message has it."""
        if self.seconds < _NO_TIME:
            return f"{self.stage} was not begun: {self.limit} left no time for it"
        return f"{self.stage} was ended after {show_seconds(self.seconds)} by {self.limit}"


@dataclasses.dataclass(frozen=True, eq=False)
class _Scope:
    """One attempt under way. ``deadline``: on the clock of ``time.perf_counter``; ``work``: on the thread's own."""

    name: str
    started: float
    deadline: float
    work: float = math.inf


class Bounds:
    """What is left of ``limits``, from now on. Belongs to the thread that made it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stages: list[Stage] = []
        self.place: object = None
        self._started = time.perf_counter()
        self._first_memory = resident_memory()
        self._scopes = [_Scope("verification", self._started, self._started + limits.seconds)]
        self._is_full = False
        self._uninterrupted = 0
        self._is_collecting = False
        self._lock = threading.Lock()
        self._interrupted_at = -math.inf
        self._is_interrupted = False
        self._thread = threading.get_ident()

    # -- the verifying thread

    def check(self) -> None:
        """Raises ``LimitReachedError`` where a limit is reached, inside of an attempt."""
        if len(self._scopes) > 1 and self._is_over():
            raise LimitReachedError

    def _is_over(self) -> bool:
        scope = self._scopes[-1]
        worked = scope.work < math.inf and time.thread_time() > scope.work
        return self._is_full or worked or time.perf_counter() > scope.deadline

    @property
    def stage(self) -> str:
        """The attempt under way; read by other threads too."""
        return self._scopes[-1].name

    @property
    def seconds_left(self) -> float:
        """Until the attempt under way must end."""
        return max(0.0, self._scopes[-1].deadline - time.perf_counter())

    @property
    def memory_left(self) -> int:
        """Bytes by which the process may still grow."""
        return max(0, self.limits.memory - self._growth())

    def attempt(
        self, stage: str, work: Callable[[], Value], share: float = 1.0, own_seconds: float = math.inf
    ) -> Value | RanOut:
        """What ``work`` returns, or ``RanOut`` where a limit ends it. It may take ``share`` of the time that is left,
        and ``own_seconds`` of the thread's own time, which work that asks nothing does not see.

        Inside of another attempt, raises ``LimitReachedError`` where that one must end as well.
        """
        self.check()
        started = time.perf_counter()
        outer = self._scopes[-1]
        own = min(outer.work, time.thread_time() + own_seconds)
        scope = _Scope(stage, started, min(outer.deadline, started + share * self.seconds_left), own)
        if self._is_over():
            return self._ran_out(scope)
        self._scopes.append(scope)
        self.place = None
        try:
            try:
                value = work()
            finally:
                self._close(scope)
        except LimitReachedError:
            self._close(scope)
        else:
            self.stages.append(Stage(stage, time.perf_counter() - started, True, len(self._scopes)))
            return value
        # Not inside of the handler: the error's traceback holds all that the work had.
        return self._ran_out(scope)

    def _ran_out(self, scope: _Scope) -> RanOut:
        limit = f"the time limit of {show_seconds(self.limits.seconds)}"
        if self._is_full:
            limit = f"the memory limit of {show_bytes(self.limits.memory)}"
            gc.collect()
            release_free_memory()
            self._is_full = self._growth() > self.limits.memory
        seconds, place = time.perf_counter() - scope.started, self.place
        self.stages.append(Stage(scope.name, seconds, False, len(self._scopes)))
        self.check()
        return RanOut(scope.name, seconds, limit, place)

    def _close(self, scope: _Scope) -> None:
        with self._lock:
            if scope in self._scopes:
                del self._scopes[self._scopes.index(scope) :]
            if self._is_interrupted:
                self._is_interrupted = False
                _take_back_interruption(self._thread)

    @contextlib.contextmanager
    def uninterrupted(self) -> Generator[None]:
        """Work within ends at ``check`` alone: what is left half done there would harm the process."""
        self._uninterrupted += 1
        try:
            yield
        finally:
            self._uninterrupted -= 1

    def note_collection(self, phase: str, _: dict[str, int]) -> None:
        """Called by the garbage collector: what is raised in a finalizer would be lost, and work would go on."""
        self._is_collecting = phase == "start"

    # -- the watching thread

    def _growth(self) -> int:
        return resident_memory() - self._first_memory

    def watch(self) -> None:
        """Look once at the clock and the memory; called from another thread."""
        was_full, now = self._is_full, time.perf_counter()
        self._is_full = was_full or self._growth() > self.limits.memory
        with self._lock:
            overdue = was_full or now > self._scopes[-1].deadline + GRACE
            if not overdue or len(self._scopes) == 1 or self._uninterrupted or self._is_collecting:
                return
            if now - self._interrupted_at > 4 * GRACE and _interrupt(self._thread):
                self._interrupted_at, self._is_interrupted = now, True


def _interrupt(thread: int) -> bool:
    """Raises in another thread, unless a function that is not interrupted is at work there since its attempt began."""
    arguments = ctypes.c_ulong(thread), ctypes.py_object(LimitReachedError)
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    innermost = frame = sys._current_frames()[thread]  # noqa: SLF001 - there is no other way to see it
    instruction = innermost.f_lasti
    while frame is not None and frame.f_code is not Bounds.attempt.__code__:
        if frame.f_code.co_name in _OF_CONTEXTS or frame.f_code.co_filename.startswith(_OWN_STATE):
            return False
        frame = frame.f_back
    # Between this comparison and the call no other thread runs: what was looked at is what is interrupted.
    if innermost.f_lasti != instruction:
        return False
    raise_in(*arguments)
    return True


def _take_back_interruption(thread: int) -> None:
    """Called by the thread itself: what may still be raised in it is raised here.

    Withdrawn instead, by raising nothing, it would leave Python's evaluation of bytecode asking for an interruption
    again and again as long as the process lives: all that runs in it takes longer, and never ends under a profiler.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(LimitReachedError))
        while True:
            pass
    except LimitReachedError:
        return


# ------------------------------------------------------------------------------------------------ of a thread

_running: dict[int, Bounds] = {}
"""Identity of a thread -> the limits under which it works, for those who watch it."""


@contextlib.contextmanager
def limited(limits: Limits) -> Generator[Bounds]:
    """Within, what this thread does is limited. What is limited already keeps the limits that it has."""
    outer = current()
    if outer is not None:
        yield outer
        return
    bounds = Bounds(limits)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            bounds.watch()

    watcher = threading.Thread(target=watch, name="verifycompile limits", daemon=True)
    limit.put(bounds)
    _running[threading.get_ident()] = bounds
    gc.callbacks.append(bounds.note_collection)
    watcher.start()
    try:
        yield bounds
    finally:
        gc.callbacks.remove(bounds.note_collection)
        limit.put(None)
        del _running[threading.get_ident()]
        ended.set()
        watcher.join()


def current() -> Bounds | None:
    """The limits under which this thread works."""
    found = limit.current()
    return found if isinstance(found, Bounds) else None


def running_in(thread: int) -> Bounds | None:
    """The limits under which another thread works."""
    return _running.get(thread)


check, note_place = limit.check, limit.note_place


def attempt(
    stage: str, work: Callable[[], Value], share: float = 1.0, own_seconds: float = math.inf
) -> Value | RanOut:
    """``Bounds.attempt`` under the limits of this thread; without limits, what ``work`` returns."""
    bounds = current()
    return work() if bounds is None else bounds.attempt(stage, work, share, own_seconds)


def attempt_capture(stage: str, capture: Callable[[], Value], seconds: float) -> Value | RanOut:
    """``attempt`` of traces, which ends between two of them only: torch's state is not its own while it traces.

    ``seconds``: what one trace takes, as an earlier one did. None is begun where less is left.
    """
    bounds = current()
    if bounds is None:
        return capture()

    def captured() -> Value:
        if bounds.seconds_left < seconds:
            raise LimitReachedError
        with bounds.uninterrupted():
            return capture()

    return bounds.attempt(stage, captured)


def memory_left(otherwise: int) -> int:
    """Bytes that may still be taken; ``otherwise`` where nothing is limited."""
    bounds = current()
    return otherwise if bounds is None else min(otherwise, bounds.memory_left)


def show_seconds(seconds: float) -> str:
    """``0.25 s``, ``60 s``."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def show_bytes(count: int) -> str:
    """``512 MiB``, ``4 GiB``."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
