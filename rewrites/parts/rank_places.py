"""Places whose offsets are the ranks' coordinates: each rank reads and writes places of its own."""

from __future__ import annotations

from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.parts.rank_offsets import steps_of
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


def every_step_from(b: Builder, view: View, position: int, start: Number, end: Number, step: Number) -> View:
    """Every ``step``-th place, which on each rank is one place of each group of places that the step makes."""
    size, at = view.shape[position], position - b.lead
    rows = exact_quotient(size, step)  # pyright: ignore[reportArgumentType]  # a whole number
    if rows is None or end != size or not b.depends_on_rank(start):
        raise UnsupportedError(UNREPRESENTABLE, f"a slice with step {step} of symbolic size")
    shape = b.shape(view)
    return b.select(b.reshape(view, [*shape[:at], rows, step, *shape[at + 1 :]]), at + 1, start)  # pyright: ignore[reportArgumentType]  # a whole number


def placed_by_coordinate(b: Builder, view: View, dim: int, start: Number) -> tuple[View, int, Size]:
    """``view`` at its rank's place among those of all ranks along ``dim``, zero elsewhere; with ``dim`` and the
    offset, the same on all ranks, at which these places begin: the arguments of ``pad``.
    """
    parts, base = b.affine_parts(start)
    length = b.shape(view)[dim]
    axes = steps_of(b, parts, base, length)
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
    return b.reshape(result, shape), dim, base
