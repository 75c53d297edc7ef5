"""What every test needs: a fake process group, meshes on it, and a clean Dynamo."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from verifycompile.torch_interface.ranks.fake_groups import fake_process_group


@contextlib.contextmanager
def fake_world(world_size: int, rank: int = 0) -> Generator[None]:
    """A fake process group of ``world_size`` ranks seen from ``rank``; never use the values of its collectives."""
    with fake_process_group(world_size, rank):
        yield


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
