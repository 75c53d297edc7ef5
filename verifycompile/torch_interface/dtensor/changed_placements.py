"""Placements made of other ones: of another dimension, of booleans, by the order of mesh axes in a dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.distributed.tensor.placement_types import Partial, Placement, Shard

from verifycompile.torch_interface.dtensor.placements import TRUTH_REDUCTIONS, block_shard, outer_blocks


def of_booleans(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """The same placements of booleans, by the reductions that they mean."""
    return tuple(
        Partial(TRUTH_REDUCTIONS[item.reduce_op])
        if type(item) is Partial and item.reduce_op in TRUTH_REDUCTIONS
        else item
        for item in placements
    )


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
