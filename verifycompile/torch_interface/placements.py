"""Placements that divide a dimension: ``Shard``, and torch's private ``_StridedShard``.

``_StridedShard(dim, split_factor=k)`` divides each of ``k`` outer blocks of the dimension. So tensors are laid out
whose inner mesh axis is the outer digit of a dimension, as where FSDP shards what tensor parallelism has sharded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)


def is_known(placement: Placement) -> bool:
    """Whether ``placement`` is a kind that the proof can represent; user-defined subclasses are not."""
    if type(placement) is _StridedShard:
        return isinstance(placement.split_factor, int)
    return type(placement) in (Shard, Replicate, Partial)


def sharded_dimension(placement: Placement) -> int | None:
    """The tensor dimension that ``placement`` divides, None where it divides none."""
    return placement.dim if type(placement) in (Shard, _StridedShard) else None  # pyright: ignore[reportAttributeAccessIssue]


def outer_blocks(placement: Placement) -> int:
    """Number of outer blocks of the dimension each of which ``placement`` divides; 1 for ``Shard``."""
    return int(placement.split_factor) if type(placement) is _StridedShard else 1


def block_shard(dim: int, blocks: int) -> Placement:
    """The placement that divides each of ``blocks`` outer blocks of a dimension."""
    return Shard(dim) if blocks == 1 else _StridedShard(dim, split_factor=blocks)


def with_dimension(placement: Placement, dim: int) -> Placement:
    """The same division of another dimension."""
    return block_shard(dim, outer_blocks(placement))


def in_digit_order(
    placements: Sequence[Placement], orders: Sequence[tuple[int, Sequence[int]]], sizes: Sequence[int]
) -> tuple[Placement, ...]:
    """``placements`` that say, applied outermost mesh axis first, in which order mesh axes are digits of a dimension.

    ``orders``: for a tensor dimension the mesh axes that divide it, outermost digit first. ``sizes``: of the mesh axes.
    """
    result = list(placements)
    for dim, axes in orders:
        for position, axis in enumerate(axes):
            if type(result[axis]) is Shard:
                later = [sizes[outer] for outer in axes[:position] if outer > axis]
                result[axis] = block_shard(dim, math.prod(later))
    return tuple(result)
