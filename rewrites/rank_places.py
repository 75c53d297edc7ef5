"""Places whose offsets are the ranks' coordinates: each rank writes a block of its own."""

from __future__ import annotations

from verifycompile.ir.size import Size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.rank_offsets import steps_of
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


def placed_by_coordinate(b: Builder, view: View, dim: int, start: Number) -> tuple[View, int, Size]:
    """``view`` at its rank's place among those of all ranks along ``dim``, zero elsewhere; with ``dim`` and the
    offset, the same on all ranks, at which these places begin: the arguments of ``pad``.
    """
    parts, base = b.affine_parts(start)
    length = b.shape(view)[dim]
    axes = steps_of(b, parts, length)
    result = view
    for position, axis in enumerate(axes, start=dim):
        result = b.unsqueeze(result, position)
        coordinate = next(symbol for symbol, number in b.coordinates.items() if number == axis)
        mask = b.equal(b.iota(b.mesh[axis]), coordinate)
        for _ in range(b.rank(result) - position - 1):
            mask = b.unsqueeze(mask, -1)
        result = b.mul(result, mask)
    shape = list(b.shape(view))
    shape[dim] = product((length, *(b.mesh[axis] for axis in axes)))
    if isinstance(base, int) and base < 0:
        raise UnsupportedError(UNREPRESENTABLE, f"places that are counted from the end: {start}")
    return b.reshape(result, shape), dim, base
