"""The memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import sys

_STATISTICS = pathlib.Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_memory() -> int:
    """Bytes that this process has in memory now; where the system does not say, the most that it ever had."""
    with contextlib.suppress(OSError):
        return int(_STATISTICS.read_bytes().split()[1]) * _PAGE
    return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process ever had in memory: Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def release_free_memory() -> None:
    """Give memory that was freed back to the system, where its C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
