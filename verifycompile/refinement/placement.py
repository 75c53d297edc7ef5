"""Placements as relations between a spec value and the stacked tensor of the implementation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import reindexed
from verifycompile.ir.scalar import ONE, as_scalar, divide
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import Digit, TermPool, View
from verifycompile.program import Mesh
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.dtensor.placements import (
    is_known,
    norm_order,
    outer_blocks,
    reduction_name,
    sharded_dimension,
)

Placements = tuple[Placement, ...]

UNEVEN = "VC204"

_REDUCTIONS = ("sum", "avg", "max", "min", "product")


def shard(pool: TermPool, view: View, placements: Sequence[Placement], mesh: Mesh) -> View:
    """The stacked tensor whose ranks hold ``view`` as placed; Partial counts as Replicate here.

    ``view`` has tensor dimensions only. Axes that shard one dimension split it outermost axis first, as DTensor
    does. Raises UnsupportedError for uneven shards and unknown placements.
    """
    lead = len(mesh.axes)
    parts: list[list[_Part]] = [[_Part(None, 1, size)] for size in view.shape]
    for axis, placement in enumerate(placements):
        if not is_known(placement):
            raise UnsupportedError(UNREPRESENTABLE, f"the placement {placement}")
        sharded = sharded_dimension(placement)
        if sharded is None:
            continue
        if not -view.rank <= sharded < view.rank:
            raise UnsupportedError(UNREPRESENTABLE, f"the placement {placement} of a tensor of {view.rank} dimensions")
        dim = sharded % view.rank
        divided = _divide(parts[dim], axis, mesh.axes[axis].size, outer_blocks(placement))
        if divided is None:
            size = product(part.size for part in parts[dim] if part.axis is None)
            raise UnsupportedError(UNEVEN, f"dimension {dim} of size {size} is sharded unevenly")
        parts[dim] = divided
    shape = [product(part.size for part in divided if part.axis is None) for divided in parts]
    replacement: dict[int, Sequence[Digit]] = {dim: _digits(divided, lead + dim) for dim, divided in enumerate(parts)}
    return reindexed(pool, view, replacement, (*mesh.shape, *shape))


@dataclasses.dataclass(frozen=True)
class _Part:
    """A digit of a whole dimension: of a mesh axis (its ``divisor`` and ``size``), or of the local dimension."""

    axis: int | None
    divisor: Size
    size: Size


def _divide(parts: Sequence[_Part], axis: int, count: int, blocks: int) -> list[_Part] | None:
    """Let each of ``blocks`` outer blocks of what is local be divided over ``count`` ranks; None where it is uneven."""
    result: list[_Part] = []
    skipped: Size = blocks
    left: Size = count
    for part in parts:
        rest = part.size
        if part.axis is not None:
            result.append(part)
            continue
        for of_axis in (False, True):
            wanted = left if of_axis else skipped
            taken, missing, inner = wanted, 1, exact_quotient(rest, wanted)
            if inner is None:
                missing, taken, inner = exact_quotient(wanted, rest), rest, 1
            if missing is None:
                return None
            rest = inner
            result.append(_Part(axis, missing, taken) if of_axis else _Part(None, 1, taken))
            skipped, left = (skipped, missing) if of_axis else (missing, left)
        result.append(_Part(None, 1, rest))
    return result if skipped == 1 and left == 1 else None


def _digits(parts: Sequence[_Part], local: int) -> list[Digit]:
    """The index of a whole dimension, of which each rank holds the dimension ``local``."""
    digits: list[Digit] = []
    below: Size = 1
    for part in reversed(parts):
        if part.axis is not None:
            digits.append((part.axis, part.divisor, part.size))
            continue
        digits.append((local, below, part.size))
        below = product((below, part.size))
    return digits[::-1]


def reduce_partial(pool: TermPool, view: View, placements: Sequence[Placement], mesh: Mesh) -> View:
    """Reduce a stacked tensor over the axes on which ``placements`` says Partial."""
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Partial):
            continue
        operation, order = placement.reduce_op, norm_order(placement)
        if operation not in _REDUCTIONS or not is_known(placement):
            raise UnsupportedError(UNREPRESENTABLE, f"the placement {placement}")
        if order is not None:
            view = _reduce_norm(pool, view, axis, order, mesh)
            continue
        if operation in ("sum", "avg"):
            reduced = algebra.sum_over(pool, view, [axis])
            if operation == "avg":
                reduced = reduced.scaled(divide(ONE, as_scalar(mesh.axes[axis].size)))
        else:
            from verifycompile.rewrites.operators import reduction  # here, because few values are partial in this way

            if operation == "product":
                reduced = reduction.reduce_product(pool, view, [axis])
            else:
                reduced = reduction.reduce_extreme(pool, view, [axis], operation)
        view = relabel.insert_dim(reduced, axis, mesh.axes[axis].size)
    return view


def _reduce_norm(pool: TermPool, view: View, axis: int, order: float, mesh: Mesh) -> View:
    b = Builder(pool, mesh.shape)
    summed = algebra.sum_over(pool, b.power(view, order), [axis])
    return b.power(relabel.insert_dim(summed, axis, mesh.axes[axis].size), divide(ONE, as_scalar(order)))


def holds(pool: TermPool, spec: View, implementation: View, placements: Sequence[Placement], mesh: Mesh) -> bool:
    """Whether the stacked tensor is the spec value in these placements. Raises UnsupportedError."""
    expected = shard(pool, spec, placements, mesh)
    return same_value(reduce_partial(pool, implementation, placements, mesh), expected)


def same_value(left: View, right: View) -> bool:
    """Equality of normal forms (shapes of unused dimensions included)."""
    if left.is_zero and right.is_zero:
        return left.shape == right.shape
    return (
        left.term is right.term
        and left.coefficient == right.coefficient
        and left.axes == right.axes
        and left.shape == right.shape
    )


def with_open_axes(declared: Placements, found: Placements, open_axes: frozenset[int]) -> Placements:
    """``declared``, with ``found`` on the mesh axes that are open."""
    return tuple(found[axis] if axis in open_axes else item for axis, item in enumerate(declared))


def describe(name: str, placements: Sequence[Placement], mesh: Mesh) -> str:
    """The clean expression that gives the spec value from the implementation's, e.g. ``concat(x, dim=0, over=tp)``."""
    text = name
    for axis, placement in reversed(list(enumerate(placements))):
        over = mesh.axes[axis].name
        dim, blocks = sharded_dimension(placement), outer_blocks(placement)
        if dim is not None:
            each = f", in each of {blocks} blocks" if blocks > 1 else ""
            text = f"concat({text}, dim={dim}, over={over}{each})"
        elif isinstance(placement, Partial):
            name = reduction_name(placement)
            operation = {"avg": "mean"}.get(name, name)
            text = f"{operation}({text}, over={over})"
    return text
