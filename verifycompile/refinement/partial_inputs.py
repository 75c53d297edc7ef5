"""Inputs of which each rank holds a summand: the leaf is the stack of the summands, the spec's value their sum."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.ir import algebra
from verifycompile.ir.scalar import ONE, as_scalar, divide
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Mesh, ProgramInput
from verifycompile.refinement.inputs import input_key
from verifycompile.refinement.placement import shard
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.dtensor.changed_placements import with_dimension
from verifycompile.torch_interface.dtensor.placements import reduction_name, sharded_dimension


def partial_leaf(
    spec: Lowering,
    spec_input: ProgramInput,
    shape: tuple[Size, ...],
    placements: Sequence[Placement],
    mesh: Mesh,
) -> View:
    """The implementation's stack of summands; the spec's value is provided as their sum. Raises UnsupportedError."""
    pool, name = spec.pool, ":".join(input_key(spec_input))
    partial = [axis for axis, p in enumerate(placements) if isinstance(p, Partial)]
    stacked = pool.leaf(name, (*(mesh.axes[a].size for a in partial), *shape), "partial")
    total = algebra.sum_over(pool, stacked, range(len(partial)))
    count = 1
    for axis in partial:
        placement = placements[axis]
        assert isinstance(placement, Partial)
        if reduction_name(placement) not in ("sum", "avg"):
            raise UnsupportedError(UNREPRESENTABLE, f"an input with the placement {placement}")
        if placement.reduce_op == "avg":
            count *= mesh.axes[axis].size
    spec.provide(spec_input.node, total.scaled(divide(ONE, as_scalar(count))))
    # Shard the summands like any tensor, then let the leading dimensions be the partial mesh axes.
    return _shard_summands(pool, stacked, placements, partial, mesh)


def _shard_summands(
    pool: TermPool, stacked: View, placements: Sequence[Placement], partial: Sequence[int], mesh: Mesh
) -> View:
    """``stacked`` has one leading dimension per partial axis; return the stacked tensor over the whole mesh."""
    lead, extra = len(mesh.axes), len(partial)
    shifted = tuple(_shift(p, extra) for p in placements)
    wide = shard(pool, stacked, shifted, mesh)
    axes = tuple(
        tuple(
            (partial[d[0] - lead], d[1], d[2]) if lead <= d[0] < lead + extra else _lower(d, lead + extra, extra)
            for d in axis
        )
        for axis in wide.axes
    )
    return View(wide.coefficient, wide.term, (*mesh.shape, *wide.shape[lead + extra :]), axes)


def _shift(placement: Placement, extra: int) -> Placement:
    dim = sharded_dimension(placement)
    return placement if dim is None else with_dimension(placement, dim + extra)


def _lower(digit: tuple[int, Size, Size], start: int, by: int) -> tuple[int, Size, Size]:
    return (digit[0] - by, digit[1], digit[2]) if digit[0] >= start else digit
