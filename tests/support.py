"""What every test needs: a fake process group, meshes on it, and a clean Dynamo."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_world(world_size: int, rank: int = 0) -> Generator[None]:
    """A fake process group of ``world_size`` ranks seen from ``rank``; never use the values of its collectives."""
    _forget_earlier_worlds()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        _forget_earlier_worlds()
        dist.destroy_process_group()


def _forget_earlier_worlds() -> None:
    torch._dynamo.reset()
    # DTensor remembers layouts by equal mesh and would hand out the mesh of a world that is gone.
    _clear_sharding_prop_cache()


def fake_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """A CPU mesh over the whole fake world; the product of ``shape`` is the world size."""
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


@contextlib.contextmanager
def fake_mesh_world(shape: tuple[int, ...], names: tuple[str, ...], rank: int = 0) -> Generator[DeviceMesh]:
    """``fake_world`` of the right size and the mesh on it."""
    world_size = 1
    for size in shape:
        world_size *= size
    with fake_world(world_size, rank):
        yield fake_mesh(shape, names)
