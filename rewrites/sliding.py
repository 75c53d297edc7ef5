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
from verifycompile.ir.size import Size
from verifycompile.ir.term import Axis, TermPool, View
from verifycompile.ir.window import RANGE, range_view
from verifycompile.rewrites.constant_matrix import WINDOW as MATRIX
from verifycompile.rewrites.matching import matching_lemma

WINDOWS, REACH, LINE = range(3)
"""The axes: number of the window, place in it, position on the line."""


@dataclasses.dataclass(frozen=True)
class Matrix:
    """The numbers of one matrix of sliding windows."""

    stride: int
    padding: int
    dilation: int
    windows: int
    reach: int
    line: int

    def moved(self, axis: int, start: int, length: int) -> Matrix:
        """The matrix whose position 0 along ``axis`` is position ``start`` of this one, and which has ``length``."""
        if axis == WINDOWS:
            return dataclasses.replace(self, padding=self.padding - start * self.stride, windows=length)
        if axis == REACH:
            return dataclasses.replace(self, padding=self.padding - start * self.dilation, reach=length)
        return dataclasses.replace(self, padding=self.padding + start, line=length)

    def hits(self, axis: int, span: tuple[int, int] | None = None) -> tuple[int, int]:
        """A range outside of which the matrix is zero along ``axis``, the others (or ``span`` of them) being whole.

        ``span``: first and last position on the line for ``WINDOWS``, first and last window for ``LINE``.
        """
        last = (self.reach - 1) * self.dilation
        if axis == WINDOWS:
            low, high = span or (0, self.line - 1)
            return max(0, -((last - self.padding - low) // self.stride)), min(
                self.windows - 1, (high + self.padding) // self.stride
            )
        low, high = span or (0, self.windows - 1)
        return max(0, low * self.stride - self.padding), min(self.line - 1, high * self.stride - self.padding + last)

    def everything(self, axis: int) -> tuple[int, int]:
        """``(start, length)``, as for ``moved``: all windows that reach the line, or all positions that one reaches."""
        last = (self.reach - 1) * self.dilation
        if axis == LINE:
            return -self.padding, (self.windows - 1) * self.stride + last + 1
        start = -((last - self.padding) // self.stride)
        return start, (self.line - 1 + self.padding) // self.stride - start + 1


def matrix_of(view: View) -> Matrix | None:
    """The numbers of a matrix of sliding windows."""
    if view.term.operation is not MATRIX or view.coefficient != 1:
        return None
    numbers = (*view.term.attributes, *view.term.index_sizes)
    if not all(isinstance(number, int) for number in numbers):
        return None
    return Matrix(*numbers)  # type: ignore[arg-type]  # checked above


def axis_along(view: View, dim: int) -> int | None:
    """The axis of a matrix that is all of ``dim``, which no other axis reads."""
    whole: Axis = ((dim, 1, view.shape[dim]),)
    found = [k for k, axis in enumerate(view.axes) if any(digit[0] == dim for digit in axis)]
    return found[0] if len(found) == 1 and view.axes[found[0]] == whole else None


def placed(pool: TermPool, view: View, matrix: Matrix, dim: int, axis: int) -> View:
    """``view`` with the numbers of ``matrix``, of which ``axis`` is all of ``dim``."""
    sizes = (matrix.windows, matrix.reach, matrix.line)
    attributes = (matrix.stride, matrix.padding, matrix.dilation)
    term = pool.intern(MATRIX, attributes, (), sizes, 3, 0, (), (0, 1, 2))
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
    masks = {dim: view for view in factors if (dim := _masked_dim(view)) in bound}
    for wanted in (LINE, WINDOWS) if masks else ():
        for factor in factors:
            matrix = matrix_of(factor)
            dims = {axis_along(factor, dim): dim for dim in range(factor.rank)}
            mask = masks.get(dims.get(wanted, -1))
            if matrix is None or mask is None:
                continue
            other = masks.get(dims.get(LINE if wanted == WINDOWS else WINDOWS, -1))
            low, high = matrix.hits(wanted, None if other is None else _span(other))
            first, last = _span(mask)
            if first <= low and high <= last:
                return [view for view in factors if view is not mask]
    return None


def _masked_dim(view: View) -> int:
    """The dimension all of whose positions a mask on a range reads; -1 for other views."""
    if view.term.operation is not RANGE or view.coefficient != 1 or len(view.axes[0]) != 1:
        return -1
    dim, divisor, size = view.axes[0][0]
    return dim if divisor == 1 and size == view.shape[dim] else -1


def _span(mask: View) -> tuple[int, int]:
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
    if view.term.operation is not CONTRACT or not view.term.summed:
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
        mask = next((v for v in opened.operands if _masked_dim(v) == bound), None)
        rest = tuple(v for v in opened.operands if v is not mask)
        whole = (0, int(opened.shape[bound]) - 1)
        again = functools.partial(_summed, pool, view, opened, rest, bound)
        inner = view if mask is None else again(whole)
        span = whole if mask is None else _span(mask)
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


@dataclasses.dataclass(frozen=True)
class _Block:
    """A summand that sums over some windows, and over those positions on the line that ``line`` lets through."""

    summand: View
    inner: View
    windows: tuple[int, int]
    line: tuple[int, int]
    reach: tuple[int, int]
    again: Callable[[tuple[int, int], tuple[int, int]], View]

    @property
    def read(self) -> tuple[int, int]:
        return max(self.line[0], self.reach[0]), min(self.line[1], self.reach[1])


@matching_lemma("VL97", "neighbouring-sliding-windows")
def merge_blocks(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Two summands that sum over neighbouring sliding windows, and read the same of the line where both reach it.

    Each may sum over the positions on the line that its own windows reach alone.
    """
    if pool.piecewise is None:
        return None
    found = [block for operand in operands for block in _blocks(pool, operand, shape)]
    for left in found:
        for right in found:
            if left.summand is right.summand or left.windows[1] + 1 != right.windows[0]:
                continue
            line = min(left.read[0], right.read[0]), max(left.read[1], right.read[1])
            agree = all(
                (max(line[0], item.reach[0]), min(line[1], item.reach[1])) == item.read for item in (left, right)
            )
            if agree and left.inner == right.inner:
                pool.lemma_trace.append(("neighbouring-sliding-windows", ""))
                rest = [view for view in operands if view is not left.summand and view is not right.summand]
                return [*rest, left.again((left.windows[0], right.windows[1]), line)]
    return None


def _blocks(pool: TermPool, operand: View, shape: tuple[Size, ...]) -> list[_Block]:
    term = operand.term
    if term.operation is not CONTRACT or not any(v.term.operation is RANGE for v in term.operands):
        return []
    view = dataclasses.replace(operand, shape=shape)
    opened = open_view(view)
    masks = {dim: v for v in opened.operands if (dim := _masked_dim(v)) in opened.summed}
    found: list[_Block] = []
    for factor in opened.operands:
        matrix = matrix_of(factor)
        dims = {axis_along(factor, d): d for d in opened.summed}
        if matrix is None or WINDOWS not in dims or LINE not in dims or dims[WINDOWS] not in masks:
            continue
        own = [masks[dims[axis]] for axis in (WINDOWS, LINE) if dims[axis] in masks]
        rest = tuple(v for v in opened.operands if not any(v is mask for mask in own))
        again = functools.partial(_block_sum, pool, view, opened, rest, (dims[WINDOWS], dims[LINE]))
        windows = _span(masks[dims[WINDOWS]])
        whole = (0, matrix.windows - 1), (0, matrix.line - 1)
        line = _span(masks[dims[LINE]]) if dims[LINE] in masks else whole[1]
        found.append(_Block(operand, again(*whole), windows, line, matrix.hits(LINE, windows), again))
    return found


def _block_sum(
    pool: TermPool,
    view: View,
    opened: Opened,
    factors: Sequence[View],
    dims: tuple[int, int],
    *spans: tuple[int, int],
) -> View:
    first, span = dims[0], spans[0]
    masked = list(factors)
    if spans[1] != (0, int(opened.shape[dims[1]]) - 1):
        masked.append(range_view(pool, dims[1], opened.shape, (spans[1][0], spans[1][1] + 1)))
    return _summed(pool, view, opened, masked, first, span)
