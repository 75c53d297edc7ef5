"""Tensor subclasses of torch.distributed that are transparent to a proof."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.placement_types import Partial, Replicate


def without_pending_collective(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor behind the pending result of a collective; other tensors as they are."""
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor


def arrived(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor behind the pending result of a collective, once it is there; other tensors as they are."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def fake_tensors() -> AbstractContextManager[object]:
    """While entered, tensors that are made have a shape, a dtype and a device, and no memory. Dynamo traces them."""
    return FakeTensorMode()


def forget_layouts() -> None:
    """Drop what DTensor remembers of the results of its operators: shapes of shards among it, which differ by rank."""
    _clear_sharding_prop_cache()


@contextlib.contextmanager
def layouts_forgotten() -> Generator[None]:
    """``forget_layouts`` before and after: what is traced within is of other ranks, or is traced otherwise."""
    forget_layouts()
    try:
        yield
    finally:
        forget_layouts()


def of_acting_rank(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor as the rank holds it that this process acts as: its shard may have another size. Uninitialised.

    Other tensors, and DTensors whose shard has the same shape, are returned as they are.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    shape, _ = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    own = tensor._local_tensor
    if tuple(shape) == tuple(own.shape):
        return tensor
    local = own.new_empty(tuple(shape))
    made = DTensor(local, tensor._spec, requires_grad=False)
    return trained_as(tensor, made)


def trained_as(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """``made``, which is a parameter where ``tensor`` is one, and requires a gradient where that does."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def like_dtensor(output: DTensor, local: torch.Tensor) -> DTensor:
    """``local`` as a cotangent of ``output``: where that is a sum of parts, each of them has all of it."""
    placements = [Replicate() if isinstance(item, Partial) else item for item in output.placements]
    return DTensor.from_local(
        local, output.device_mesh, placements, run_check=False, shape=output.shape, stride=output.stride()
    )


class _Recording(threading.local):
    """Of a thread: what it records, where it does. Threads of ranks take turns, and end in any order."""

    taken: list[tuple[DTensor, torch.Tensor]] | None = None


_recording = _Recording()
_originals: list[Any] = []
"""The method of torch, once for each thread that records."""


@contextlib.contextmanager
def from_local_recorded() -> Generator[list[tuple[DTensor, torch.Tensor]]]:
    """While entered, yields what ``DTensor.from_local`` makes in this thread, with what it makes it of."""
    original = _originals[0] if _originals else vars(DTensor)["from_local"]

    def recorded(local: torch.Tensor, *args: Any, **kwargs: Any) -> DTensor:
        made = original.__func__(local, *args, **kwargs)
        if _recording.taken is not None:
            _recording.taken.append((made, local))
        return made

    before, _recording.taken = _recording.taken, []
    _originals.append(original)
    DTensor.from_local = staticmethod(recorded)  # type: ignore[method-assign]  # until no thread records
    try:
        yield _recording.taken
    finally:
        _recording.taken = before
        _originals.pop()
        if not _originals:
            DTensor.from_local = original
