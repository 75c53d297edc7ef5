"""Sliding windows on parts of a line: the matrix of a convolution, moved to where the whole line's positions are.

``[o, k, x]``, one where ``x = o * stride - padding + k * dilation``, says the same of any stretch of windows and of the
line once the padding is shifted. So a part of the matrix is a matrix, and one on a part of a line is one on the whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from verifycompile.ir import algebra
from verifycompile.ir.algebra import CONTRACT, Opened, open_view
from verifycompile.ir.term import Axis, TermPool, View
from verifycompile.ir.window import RANGE, range_view
from verifycompile.rewrites.operations import SLIDING_WINDOW
from verifycompile.rewrites.parts.sliding_matrix import LINE, WINDOWS, Matrix, axis_along, matrix_of


def placed(pool: TermPool, view: View, matrix: Matrix, dim: int, axis: int) -> View:
    """``view`` with the numbers of ``matrix``, of which ``axis`` is all of ``dim``."""
    sizes = (matrix.windows, matrix.reach, matrix.line)
    attributes = (matrix.stride, matrix.padding, matrix.dilation)
    term = pool.intern(SLIDING_WINDOW, attributes, (), sizes, 3, 0, (), (0, 1, 2))
    shape = (*view.shape[:dim], sizes[axis], *view.shape[dim + 1 :])
    along: Axis = () if sizes[axis] == 1 else ((dim, 1, sizes[axis]),)
    axes = tuple(along if k == axis else old for k, old in enumerate(view.axes))
    return dataclasses.replace(view, term=term, shape=shape, axes=axes)


def stretched(pool: TermPool, view: View, dim: int, start: int, length: int) -> View | None:
    """The matrix with ``length`` positions along ``dim``, the first of which is position ``start``; before it, and
    behind the last one, the matrix goes on.
    """
    matrix, axis = matrix_of(view), axis_along(view, dim)
    if matrix is None or axis is None:
        return None
    pool.lemma_trace.append(("sliding-windows-of-a-part", ""))
    return placed(pool, view, matrix.moved(axis, start, length), dim, axis)


def without_implied_range(factors: Sequence[View], bound: range) -> list[View] | None:
    """The factors without one mask on a range of a summed dimension that a matrix among them implies; else None.

    What a matrix reaches is bounded by the masks on its other axis.
    """
    masks = {dim: view for view in factors if (dim := masked_dim(view)) in bound}
    for wanted in (LINE, WINDOWS):
        for factor in factors:
            matrix = matrix_of(factor)
            dims = {axis_along(factor, dim): dim for dim in range(factor.rank)}
            mask = masks.get(dims.get(wanted, -1))
            if matrix is None or mask is None:
                continue
            other = masks.get(dims.get(LINE if wanted == WINDOWS else WINDOWS, -1))
            low, high = matrix.hits(wanted, None if other is None else span_of(other))
            first, last = span_of(mask)
            if first <= low and high <= last:
                return [view for view in factors if view is not mask]
    return None


def masked_dim(view: View) -> int:
    """The dimension all of whose positions a mask on a range reads; -1 for other views."""
    if view.term.operation is not RANGE or view.coefficient != 1 or len(view.axes[0]) != 1:
        return -1
    dim, _, size = view.axes[0][0]
    return dim if dim >= 0 and size == view.shape[dim] else -1


def span_of(mask: View) -> tuple[int, int]:
    """The first and the last position that a mask lets through."""
    first, after = mask.term.attributes
    assert isinstance(first, int)
    assert isinstance(after, int)
    return first, after - 1


@dataclasses.dataclass(frozen=True)
class Reached:
    """A sum of products over windows (or positions on a line) of which a stretch of the result reaches some.

    ``inner``: the product summed over all of them. ``span``: first and last one that is summed. ``reach``: first and
    last one that the stretch can read. ``again``: the sum over another span.
    """

    inner: View
    span: tuple[int, int]
    reach: tuple[int, int]
    masked: bool
    again: Callable[[tuple[int, int]], View]

    @property
    def read(self) -> tuple[int, int]:
        """What the stretch does read."""
        return max(self.span[0], self.reach[0]), min(self.span[1], self.reach[1])


def reached(pool: TermPool, view: View, dim: int, start: int, length: int) -> list[Reached]:
    """For each matrix that reads ``dim``, what positions ``start`` to ``start + length`` reach through it."""
    if view.term.operation is not CONTRACT:
        return []
    opened = open_view(view)
    found: list[Reached] = []
    for factor in opened.operands:
        matrix, axis = matrix_of(factor), axis_along(factor, dim)
        if matrix is None or axis not in (WINDOWS, LINE):
            continue
        other = LINE if axis == WINDOWS else WINDOWS
        bound = next((d for d in opened.summed if axis_along(factor, d) == other), None)
        if bound is None:
            continue
        mask = next((v for v in opened.operands if masked_dim(v) == bound), None)
        rest = tuple(v for v in opened.operands if v is not mask)
        whole = (0, int(opened.shape[bound]) - 1)
        again = functools.partial(_summed, pool, view, opened, rest, bound)
        inner = view if mask is None else again(whole)
        span = whole if mask is None else span_of(mask)
        reach = matrix.hits(other, (start, start + length - 1))
        found.append(Reached(inner, span, reach, mask is not None, again))
    return found


def _summed(
    pool: TermPool, view: View, opened: Opened, factors: Sequence[View], dim: int, span: tuple[int, int]
) -> View:
    shape = opened.shape
    whole = span == (0, int(shape[dim]) - 1)
    masked = [*factors] if whole else [*factors, range_view(pool, dim, shape, (span[0], span[1] + 1))]
    labels = tuple(range(len(shape)))
    inputs = tuple(labels for _ in masked)
    product = algebra.contract(pool, masked, inputs, labels[: view.rank], frozenset(opened.summed))
    return product.scaled(view.coefficient)


def read_only(pool: TermPool, view: View, dim: int, start: int, length: int) -> View | None:
    """``view`` with a mask on a range no longer than the positions from ``start`` on reach; None where none is.

    Outside of these positions the result is another value.
    """
    if not any(factor.term.operation is RANGE for factor in view.term.operands):
        return None
    for item in reached(pool, view, dim, start, length):
        first, last = item.read
        if first > last:
            return pool.zero(view.shape)
        if item.masked and item.read == item.reach:
            return item.inner
        if item.masked and item.read != item.span:
            return item.again(item.read)
    return None


def read_together(pool: TermPool, left: tuple[View, int, int], right: tuple[View, int, int], dim: int) -> View | None:
    """One view that has the values of both where each is read, which differ in the ranges that they sum over.

    ``left``, ``right``: the view, and the first position and the length that is read along ``dim``.
    """
    for one in reached(pool, left[0], dim, *left[1:]):
        for other in reached(pool, right[0], dim, *right[1:]):
            span = min(one.read[0], other.read[0]), max(one.read[1], other.read[1])
            agree = all(
                (max(span[0], item.reach[0]), min(span[1], item.reach[1])) == item.read for item in (one, other)
            )
            if agree and one.inner == other.inner:
                return one.again(span)
    return None
