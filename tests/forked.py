"""Ranks as processes that are forked from one which has imported what verifies: it is imported once for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

IMPORTED = (
    "functorch.compile",
    "torch._dynamo.backends.debugging",
    "verifycompile.backends.verify",
    "verifycompile.two_programs",
)


def start_ranks(function: Callable[..., None], arguments: tuple[Any, ...], world: int) -> None:
    """``function(rank, *arguments)`` on ``world`` processes. The caller has started no thread and no process group."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("verifycompile.rewrites.families").load()
    mp.start_processes(function, arguments, nprocs=world, start_method="fork")
