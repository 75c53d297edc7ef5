"""Torch's fake process group: one process plays a rank of many, and what torch remembers of an earlier one goes."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_process_group(world_size: int, rank: int) -> Generator[None]:
    """The default process group inside; the values of its collectives mean nothing."""
    _forget_earlier_groups()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        _forget_earlier_groups()
        dist.destroy_process_group()


def _forget_earlier_groups() -> None:
    torch._dynamo.reset()
    # DTensor remembers layouts by equal mesh and would hand out the mesh of a group that is gone.
    _clear_sharding_prop_cache()
