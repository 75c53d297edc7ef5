"""Process groups and meshes of any size in one process, for tests that prove and run nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@contextlib.contextmanager
def fake_group(world_size: int, rank: int = 0) -> Generator[None]:
    """Inside, this process is ``rank`` of ``world_size`` ranks of torch's fake process group.

    Raises ``RuntimeError`` where a process group is there already, ``ValueError`` for a size or rank that is none.
    """
    from verifycompile.torch_interface.ranks.fake_groups import fake_process_group  # it imports DTensor

    if not isinstance(world_size, int) or world_size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # not everyone checks types
        raise ValueError(f"`world_size` must be a number of ranks greater than zero, not {world_size!r}.")
    if dist.is_initialized():
        raise RuntimeError("a process group is there already: end it with `torch.distributed.destroy_process_group()`.")
    if not 0 <= rank < world_size:
        raise ValueError(f"`rank` must be one of 0 to {world_size - 1}, not {rank}.")
    with fake_process_group(world_size, rank):
        yield


@contextlib.contextmanager
def fake_mesh(axes: Mapping[str, int], rank: int = 0) -> Generator[DeviceMesh]:
    """Inside, a CPU mesh with ``axes``, name -> number of ranks, outermost first, over a fake group of its size.

    Raises as ``fake_group`` does, ``ValueError`` for axes that are none.
    """
    _check_axes(axes)
    with fake_group(math.prod(axes.values()), rank):
        yield init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def over_meshes(*meshes: Mapping[str, int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A test that takes the fixture ``verify_mesh``, run once with each mesh: ``{"dp": 2, "tp": 4}``."""
    import pytest

    if not meshes:
        raise ValueError('name a mesh or several: `over_meshes({"tp": 2}, {"dp": 2, "tp": 4})`.')
    for axes in meshes:
        _check_axes(axes)
    identifiers = ["-".join(f"{name}{size}" for name, size in axes.items()) for axes in meshes]
    return pytest.mark.parametrize("verify_mesh", meshes, indirect=True, ids=identifiers)


def _check_axes(axes: object) -> None:
    sizes = cast("Mapping[object, object]", axes) if isinstance(axes, Mapping) else {}
    right = all(isinstance(name, str) and isinstance(size, int) and size > 0 for name, size in sizes.items())
    if not sizes or not right:
        raise ValueError(f'a mesh is named axes with their numbers of ranks, {{"dp": 2, "tp": 4}}, not {axes!r}.')
