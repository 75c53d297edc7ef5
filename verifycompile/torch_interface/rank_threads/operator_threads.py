"""How many threads torch's operators share."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Operators work in the thread that calls them.

    Small tensors gain nothing from more threads; where a machine has other work, threads that wait for one another
    take many times as long, and their waiting counts as work of the calling thread.
    """
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
