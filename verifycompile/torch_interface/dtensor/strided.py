"""``_StridedShard`` at capture: its gathers and slices as views.

torch computes the layout of a strided shard from a tensor of indices, whose elements it reads one by one. Under fake
tensors every element becomes a symbol, and the rearrangement after an all-gather a lookup by a sorted tensor. Where the
shards are even, what it computes is documented: a dimension of size ``blocks * ranks * rest`` with the middle digit
taken out. Captured in that form, a graph has no index tensors and no symbols.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed._functional_collectives as functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import placement_types

_StridedShard = placement_types._StridedShard
_NAMES = ("_to_replicate_tensor", "_select_split_tensor", "local_shard_size_and_offset")


def joined(tensor: torch.Tensor, dim: int, ranks: int, blocks: int) -> torch.Tensor:
    """The whole tensor from all ranks' strided shards, which lie one after the other along ``dim``."""
    rest = tensor.shape[dim] // (ranks * blocks)
    return tensor.unflatten(dim, (ranks, blocks, rest)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def selected(tensor: torch.Tensor, dim: int, ranks: int, blocks: int, rank: int | torch.SymInt) -> torch.Tensor:
    """The strided shard of one rank."""
    rest = tensor.shape[dim] // (ranks * blocks)
    pieces = tensor.unflatten(dim, (blocks, ranks, rest))
    return pieces.narrow(dim + 1, rank, 1).flatten(dim, dim + 2)


@contextlib.contextmanager
def strided_shards_by_views() -> Generator[list[str]]:
    """While entered, even strided shards are made and gathered by views; yields what was done so, by name."""
    made: list[str] = []
    to_replicate, select, size_and_offset = (getattr(_StridedShard, name) for name in _NAMES)

    def gather(
        self: _StridedShard, local_tensor: torch.Tensor, mesh: DeviceMesh, mesh_dim: int, shape: Sequence[Any]
    ) -> torch.Tensor:
        ranks, blocks = mesh.size(mesh_dim=mesh_dim), self.split_factor
        if not _even(shape[self.dim], ranks, blocks) or local_tensor.shape[self.dim] * ranks != shape[self.dim]:
            return to_replicate(self, local_tensor, mesh, mesh_dim, shape)
        made.append("all_gather")
        pieces = functional_collectives.all_gather_single(
            local_tensor.contiguous(), gather_dim=self.dim, group=(mesh, mesh_dim)
        )
        if isinstance(pieces, functional_collectives.AsyncCollectiveTensor):
            pieces = pieces.wait()
        return joined(pieces, self.dim, ranks, int(blocks)).contiguous()

    def shard(self: _StridedShard, tensor: torch.Tensor, num_chunks: int, index: Any, **options: bool) -> torch.Tensor:
        if not _even(tensor.shape[self.dim], num_chunks, self.split_factor):
            return select(self, tensor, num_chunks, index, **options)
        made.append("shard")
        return selected(tensor, self.dim, num_chunks, int(self.split_factor), index).clone()

    def sizes(self: _StridedShard, size: Any, num_chunks: int, rank: Any, offset_mode: Any = 0) -> tuple[Any, Any]:
        mode = placement_types._StridedShardOffsetMode(offset_mode)
        if mode is placement_types._StridedShardOffsetMode.ALL or not _even(size, num_chunks, self.split_factor):
            return size_and_offset(self, size, num_chunks, rank, offset_mode)
        made.append("size")
        local = size // num_chunks
        return (
            local,
            None if mode is placement_types._StridedShardOffsetMode.NONE else local // self.split_factor * rank,
        )

    with mock.patch.multiple(_StridedShard, **dict(zip(_NAMES, (gather, shard, sizes), strict=True))):
        yield made


def _even(size: Any, ranks: Any, blocks: Any) -> bool:
    # A symbolic size would get a guard that the program's own trace does not have.
    return isinstance(size, int) and isinstance(blocks, int) and size % (ranks * blocks) == 0
