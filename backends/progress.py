"""On a terminal, after two seconds, a line that says what a long check is at; it is gone when the check ends.

A thread beside the verifying one looks at it five times a second. The engine does not know that anybody looks.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Generator
from typing import TextIO

import torch.fx

from verifycompile import bounds
from verifycompile.backends.reports import rank_of_job
from verifycompile.torch_interface.source_lines.source import module_of

_AFTER = 2.0
_INTERVAL = 0.2
_CLEAR = "\r\x1b[K"
_SILENCING = ("NO_COLOR", "CI")
"""Variables that say that nobody looks at the terminal, or wants no control characters on it."""


def shows_progress(stream: TextIO) -> bool:
    """Whether a line that is written again and again is wanted: on a terminal, by the first rank alone."""
    if any(os.environ.get(name) for name in _SILENCING) or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() and rank_of_job() in (None, 0)


@contextlib.contextmanager
def progress_of(frame: str, *, after: float = _AFTER, interval: float = _INTERVAL) -> Generator[None]:
    """While entered, and after ``after`` seconds, what this thread is at is told on a terminal."""
    if not shows_progress(sys.stderr):
        yield
        return
    progress = _Progress(frame, threading.get_ident(), sys.stderr)
    ended = threading.Event()

    def watch() -> None:
        started = time.perf_counter()
        while not ended.wait(interval):
            progress.look(interval)
            if time.perf_counter() - started >= after:
                progress.tell(time.perf_counter() - started)

    watcher = threading.Thread(target=watch, name="verifycompile progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        progress.clear()


class _Progress:
    """What one verifying thread was seen at. ``seconds``: of each module, as often as it was seen."""

    def __init__(self, frame: str, thread: int, stream: TextIO) -> None:
        self._frame, self._thread, self._stream = frame, thread, stream
        self._seconds: collections.Counter[str] = collections.Counter()
        self._stage, self._at = "capture", ""
        self._is_shown = False

    def look(self, seconds: float) -> None:
        """Note where the thread is, ``seconds`` after the last look."""
        limits = bounds.running_in(self._thread)
        if limits is None:
            return
        self._stage, self._at = limits.stage, ""
        node = limits.place
        if not isinstance(node, torch.fx.Node):
            return
        try:
            module = module_of(node)
            number = next((i for i, other in enumerate(node.graph.nodes, start=1) if other is node), 0)
            count = len(node.graph.nodes)
        except (RuntimeError, AttributeError):  # the graph is changed meanwhile: the next look will do
            return
        self._at = f", node {number} of {count}" + (f" in {module}" if module else "")
        if module:
            self._seconds[module] += seconds  # pyright: ignore[reportArgumentType]  # a counter of seconds

    def tell(self, elapsed: float) -> None:
        """Write the line over the one before."""
        slowest = ""
        if len(self._seconds) > 1:
            module, seconds = self._seconds.most_common(1)[0]
            slowest = f"; slowest {module}, {seconds:.1f} s"
        line = f"verifycompile: {self._frame}: {self._stage}{self._at}, {elapsed:.0f} s{slowest}"
        self._stream.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._is_shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
