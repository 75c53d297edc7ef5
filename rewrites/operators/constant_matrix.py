"""Matrices that attributes alone determine: which elements of a line a window, a pad or an interpolation reads.

A linear operator on images is a contraction with one such matrix for each dimension of space, and its gradient the
contraction with the same matrices the other way round. So samples and channels stay free, and sums pass through.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import SLIDING_WINDOW as WINDOW
from verifycompile.rewrites.operators.elementwise import require_same_on_ranks
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError

RESAMPLING = Operation("resampling", finite=True)
"""``[o, x]``: the weight of element ``x`` in element ``o``. Attributes: the operator in one dimension and its own."""


def constant_matrix(b: Builder, operation: Operation, attributes: Sequence[Hashable], sizes: Sequence[Size]) -> View:
    """A constant of the given sizes, the same on all ranks."""
    require_same_on_ranks(b, **{f"attribute {k}": a for k, a in enumerate((*attributes, *sizes))})
    if any(size == 0 for size in sizes):
        raise UnsupportedError(UNREPRESENTABLE, f"a window on a line of {list(sizes)} elements")
    shape = tuple(sizes)
    term = b.pool.intern(
        operation, tuple(attributes), (), shape, len(shape), 0, (), tuple(range(len(shape)))
    )  # no operand feeds its axes
    axes = tuple(() if size == 1 else ((b.lead + d, 1, size),) for d, size in enumerate(shape))
    return View(ONE, term, (*b.mesh, *shape), axes)


def window(b: Builder, stride: int, padding: int, dilation: int, windows: Size, reach: Size, line: Size) -> View:
    """``windows`` windows of ``reach`` elements each on a line."""
    if padding == 0 and stride == reach and (dilation == 1 or reach == 1) and _side_by_side(windows, reach, line):
        # Element k of window o is the element of the line that the digits (o, k) spell.
        places = b.reshape(b.iota(line), (windows, reach, 1))
        return b.equal(places, b.reshape(b.iota(line), (1, 1, line)))
    return constant_matrix(b, WINDOW, (stride, padding, dilation), (windows, reach, line))


def tiles(b: Builder, count: Size, reach: int, line: Size) -> View | None:
    """``[o, x]``: one where x is in tile o of a line cut into ``count`` tiles of ``reach`` elements, else None."""
    if not _side_by_side(count, reach, line):
        return None
    tile = b.reshape(b.expand(b.reshape(b.iota(count), (count, 1)), (count, reach)), (1, line))
    return b.equal(b.reshape(b.iota(count), (count, 1)), tile)


def _side_by_side(count: Size, reach: Size, line: Size) -> bool:
    """Whether ``count`` windows of ``reach`` elements are the whole line."""
    if not (isinstance(count, int) and isinstance(reach, int) and isinstance(line, int)):
        return False
    return 0 < line == count * reach


def names(letter: str, count: int) -> str:
    """Labels of ``count`` dimensions of space, for ``Builder.contraction``."""
    return " ".join(f"{letter}{k}" for k in range(count))


def per_dimension(values: Sequence[int] | int, space: int) -> tuple[int, ...]:
    """One number for each dimension of space; a single one stands for all."""
    listed = (values,) if isinstance(values, int) else tuple(values)
    return listed * space if len(listed) == 1 else listed


def resample(b: Builder, view: View, matrices: Sequence[View]) -> View:
    """The last dimensions contracted with one matrix ``[o, x]`` each."""
    space = len(matrices)
    used = ", ".join(f"o{k} x{k}" for k in range(space))
    return b.contraction(f"*n {names('x', space)}, {used} -> *n {names('o', space)}", view, *matrices)


def resample_gradient(b: Builder, gradient: View, matrices: Sequence[View]) -> View:
    """The gradient of ``resample``: contracted with the transposed matrices."""
    space = len(matrices)
    used = ", ".join(f"o{k} x{k}" for k in range(space))
    return b.contraction(f"*n {names('o', space)}, {used} -> *n {names('x', space)}", gradient, *matrices)
