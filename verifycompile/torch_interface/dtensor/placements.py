"""Placements that divide a dimension: ``Shard``, and torch's private ``_StridedShard``.

``_StridedShard(dim, split_factor=k)`` divides each of ``k`` outer blocks of the dimension. So tensors are laid out
whose inner mesh axis is the outer digit of a dimension, as where FSDP shards what tensor parallelism has sharded.
"""

from __future__ import annotations

from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor.placement_types import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)

TRUTH_REDUCTIONS = {"sum": "max", "product": "min"}
"""What a reduction of booleans is: they are added as "or", and multiplied as "and"."""
_NORM = "norm "


def is_known(placement: Placement) -> bool:
    """Whether ``placement`` is a kind that the proof can represent; user-defined subclasses are not."""
    if type(placement) is _StridedShard:
        return isinstance(placement.split_factor, int)
    return type(placement) in (Shard, Replicate, Partial) or norm_order(placement) is not None


def norm_order(placement: Placement) -> float | None:
    """The order p of a partial norm, ``(sum of value ** p over the ranks) ** (1 / p)``; None for other placements."""
    return placement.norm_type if type(placement) is _NormPartial and placement.norm_type else None


def reduction_name(placement: Partial) -> str:
    """``sum``, ``avg``, ..., or ``norm`` and its order."""
    order = norm_order(placement)
    return placement.reduce_op if order is None else f"{_NORM}{order!r}"


def order_of(name: str) -> float | None:
    """The order in the ``reduction_name`` of a partial norm; None for other reductions."""
    return float(name.removeprefix(_NORM)) if name.startswith(_NORM) else None


def partial_of(name: str) -> Placement:
    """The placement whose ``reduction_name`` is ``name``."""
    order = order_of(name)
    return Partial(name) if order is None else _NormPartial(int(order) if order.is_integer() else order)


def sharded_dimension(placement: Placement) -> int | None:
    """The tensor dimension that ``placement`` divides, None where it divides none."""
    return placement.dim if type(placement) in (Shard, _StridedShard) else None  # pyright: ignore[reportAttributeAccessIssue]  # both have one


def outer_blocks(placement: Placement) -> int:
    """Number of outer blocks of the dimension each of which ``placement`` divides; 1 for ``Shard``."""
    return int(placement.split_factor) if type(placement) is _StridedShard else 1


def block_shard(dim: int, blocks: int) -> Placement:
    """The placement that divides each of ``blocks`` outer blocks of a dimension."""
    return Shard(dim) if blocks == 1 else _StridedShard(dim, split_factor=blocks)
