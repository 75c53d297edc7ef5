"""Parts of tensors whose number of rows is read from data: slices, splits and what assembles them again.

Rows between two numbers are written by the numbers as well, so that consecutive parts can be assembled again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from verifycompile.ir.size import normalize_size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.rows.ragged import are_in_parts, ragged
from verifycompile.rewrites.rows.row_values import Counts, Filled, Ragged, Rows
from verifycompile.rewrites.rows.rows import (
    between,
    dense,
    groups_of,
    groups_up_to,
    has_groups,
    joined,
    masked,
    parts_of_table,
    require,
    stretch,
)
from verifycompile.rewrites.values import Pieces

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


_FAR = 2**31
"""A bound of a slice beyond every size means the end."""


def _whole_rows(b: Builder, counts: Counts, value: View | Ragged, dim: int) -> tuple[View, Rows]:
    """The tensor and the rows of it along ``dim``, which are between two numbers."""
    view = value.view if isinstance(value, Ragged) else value
    total = b.shape(view)[dim]
    if isinstance(value, View):
        return view, between(b, counts, total, sympy.Integer(0), sympy.sympify(total))
    require(value.dim == dim and value.rows.span is not None, "a part of rows chosen one by one along")
    return view, value.rows


@ragged(aten.slice.Tensor)
def slice_rows(
    b: Builder, counts: Counts, self: Any, dim: int, start: Number | None, end: Number | None, step: Number
) -> Ragged | View:
    rank = b.rank(self.view if isinstance(self, Ragged) else self)
    dim %= rank
    first, last = (sympy.sympify(0 if start is None else start), None if end is None else sympy.sympify(end))
    if isinstance(self, Ragged) and dim != self.dim:
        return Ragged(dense(b, aten.slice.Tensor, self.view, dim, start, end, step), self.dim, self.rows)
    require(step == 1, "every so many elements of")
    if isinstance(self, Ragged) and first == 0 and (last is None or (last.is_Integer and last >= _FAR)):
        return self
    if isinstance(self, Ragged) and self.rows.span is None:
        return _slice_of_groups(b, counts, self, first, last)
    view, rows = _whole_rows(b, counts, self, dim)
    assert rows.span is not None
    low, high = rows.span
    # Negative bounds count from the end; a sum of sizes is none.
    require(counts.at_least(first, sympy.Integer(0)), "a part of")
    if last is None or (last.is_Integer and last >= _FAR):
        part = between(b, counts, rows.total, sympy.expand(low + first), high)
        return Ragged(view, dim, part if counts.at_least(high, low + first) else dataclasses.replace(part, span=None))
    require(counts.at_least(last, sympy.Integer(0)), "a part of")
    stop = low + last
    # Past the last row a slice ends; past the end of the whole tensor there are no rows to be present.
    require(high == rows.total or counts.at_least(high, stop), "a part, which may be longer, of")
    part = between(b, counts, rows.total, sympy.expand(low + first), sympy.expand(stop))
    return Ragged(view, dim, part if counts.at_least(last, first) else dataclasses.replace(part, span=None))


def _slice_of_groups(
    b: Builder, counts: Counts, value: Ragged, first: sympy.Expr, last: sympy.Expr | None
) -> Ragged | View:
    """Rows between two numbers of rows, where some stretches of the table hold as many."""
    sorting = counts.sortings.get(value.rows)
    whole = sorting is not None and last == sorting.length
    to_end = last is None or whole or (last.is_Integer and last >= _FAR)
    for groups in groups_of(value.rows):
        start = groups_up_to(b, counts, value, first, groups)
        stop = groups if to_end or last is None else groups_up_to(b, counts, value, last, groups)
        if start is None or stop is None or stop <= start:
            continue
        if (start, stop) == (0, groups):
            return value
        parts = [stretch(b, value, number, groups) for number in range(start, stop)]
        return parts[0] if len(parts) == 1 else joined(b, parts)
    raise UnsupportedError(UNREPRESENTABLE, "a part of rows, which is no sequence of their groups,")


@ragged(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default, aten.split_with_sizes_copy.default)
def split_rows(b: Builder, counts: Counts, self: Any, split_sizes: Sequence[Number], dim: int) -> tuple[Ragged, ...]:
    """torch raises an error unless the sizes are none below zero and sum up to the length of the tensor."""
    rank = b.rank(self.view if isinstance(self, Ragged) else self)
    dim %= rank
    if isinstance(self, Ragged) and dim != self.dim:
        return _taken_apart(b, self, dense(b, aten.split_with_sizes.default, self.view, split_sizes, dim))
    if isinstance(self, Ragged) and self.rows.span is None:
        return _split_by_groups(b, counts, self, split_sizes)
    view, rows = _whole_rows(b, counts, self, dim)
    assert rows.span is not None
    edges = [rows.span[0]]
    for size in split_sizes:
        edges.append(sympy.expand(edges[-1] + sympy.sympify(size)))
    edges[-1] = rows.span[1]
    return tuple(
        Ragged(view, dim, between(b, counts, rows.total, low, high)) for low, high in itertools.pairwise(edges)
    )


@ragged(aten.split.Tensor)
def split(b: Builder, counts: Counts, self: Any, split_size: Number, dim: int) -> tuple[Ragged, ...]:
    """Parts of every row."""
    require(isinstance(self, Ragged) and dim % b.rank(self.view) != self.dim, "equal parts of")
    require(not counts.occur_in(split_size), "parts of a size read from data of")
    return _taken_apart(b, self, dense(b, aten.split.Tensor, self.view, split_size, dim % b.rank(self.view)))


def _taken_apart(b: Builder, value: Ragged, pieces: Pieces) -> tuple[Ragged, ...]:
    starts = itertools.accumulate(pieces.lengths, initial=0)
    views = [b.narrow(pieces.view, pieces.dim, at, n) for at, n in zip(starts, pieces.lengths, strict=False)]
    return tuple(Ragged(view, value.dim, value.rows) for view in views)


def _split_by_groups(b: Builder, counts: Counts, value: Ragged, sizes: Sequence[Number]) -> tuple[Ragged, ...]:
    """The sizes must be the numbers of rows in as many equal stretches of the table."""
    require(has_groups(b, counts, value.rows, sizes), "a split into other parts than its groups of")
    return tuple(stretch(b, value, number, len(sizes)) for number in range(len(sizes)))


@ragged(aten.cat.default)
def cat_rows(b: Builder, counts: Counts, tensors: Sequence[Any], dim: int) -> Ragged | View:
    """Consecutive rows of tensors of one size, and equal rows after them."""
    first = tensors[0]
    require(isinstance(first, Ragged), "a concatenation that begins with other than rows of")
    dim %= b.rank(first.view)
    if dim != first.dim:
        require(all(isinstance(t, Ragged) and t.dim == first.dim and t.rows == first.rows for t in tensors), "cat of")
        spans = parts_of_table(counts, first.rows) if are_in_parts(b, tensors) else [(0, first.rows.total)]
        rows_of = [[b.narrow(t.view, t.dim, start, size) for t in tensors] for start, size in spans]
        joined_rows = [b.concatenate(views, dim) for views in rows_of]
        view = joined_rows[0] if len(spans) == 1 else b.concatenate(joined_rows, first.dim)
        return Ragged(view, first.dim, first.rows)
    span = first.rows.span
    if span is None:
        return _cat_of_groups(b, counts, tensors, dim)
    start: sympy.Expr = span[0]
    stop: sympy.Expr = span[1]
    total, parts = first.rows.total, [masked(b, first)]
    value: Any
    for tensor in tensors[1:]:
        if isinstance(tensor, Filled):
            high = sympy.expand(stop + tensor.length)
            value = Ragged(tensor.row, dim, between(b, counts, total, stop, high))
        else:
            value, next_span = tensor, tensor.rows.span if isinstance(tensor, Ragged) else None
            if next_span is None or value.dim != dim or value.rows.total != total:
                raise UnsupportedError(UNREPRESENTABLE, "a concatenation of different tensors whose sizes are read")
            require(next_span[0] == stop, "a concatenation of rows that do not follow each other along")
            high = next_span[1]
        parts.append(masked(b, value))
        stop = high
    whole = b.add(*parts)
    if start == 0 and stop == total:
        return whole
    return Ragged(whole, dim, between(b, counts, total, start, stop))


def _cat_of_groups(b: Builder, counts: Counts, tensors: Sequence[Any], dim: int) -> Ragged:
    parts = [tensor for tensor in tensors if isinstance(tensor, Ragged)]
    fits = all(part.dim == dim and part.rows.span is None for part in parts)
    require(fits and all(isinstance(tensor, Ragged | Filled) for tensor in tensors), "a concatenation with others of")
    whole = parts[0] if len(parts) == 1 else joined(b, parts)
    if len(parts) != len(tensors):
        (filled,) = [tensor for tensor in tensors if isinstance(tensor, Filled)]
        sorting = counts.sortings.get(whole.rows)
        require(sorting is not None and isinstance(tensors[-1], Filled), "rows put before or after")
        assert sorting is not None
        taken = sympy.expand(sympy.sympify(sorting.length) - filled.length)
        require(groups_up_to(b, counts, whole, taken, sorting.groups) == sorting.groups, "rows put after")
    return whole


@ragged(aten.slice_backward.default)
def slice_backward(
    b: Builder,
    counts: Counts,
    grad_output: Any,
    input_sizes: Sequence[Number],
    dim: int,
    start: Number,
    end: Number,
    step: Number,
) -> View | Ragged:
    """The gradient at the rows, or at the places of every row, that the slice read."""
    dim %= len(input_sizes)
    if isinstance(grad_output, Ragged) and dim != grad_output.dim:
        whole = dense(b, aten.slice_backward.default, grad_output.view, input_sizes, dim, start, end, step)
        return Ragged(whole, grad_output.dim, grad_output.rows)
    require(isinstance(grad_output, Ragged) and step == 1, "the gradient of a part of")
    total, span = input_sizes[dim], grad_output.rows.span
    sorting = counts.sortings.get(grad_output.rows)
    if sorting is not None and sorting.length == total and grad_output.dim == dim and start == 0:
        return grad_output
    if grad_output.dim == dim and span is None:
        return _gradient_of_groups(b, counts, grad_output, total, sympy.sympify(start), sympy.sympify(end))
    fits = grad_output.dim == dim and grad_output.rows.total == total and span is not None
    require(fits, "the gradient of a part of")
    assert span is not None
    first, last = sympy.sympify(start), sympy.sympify(end)
    to_end = span[1] == total and last.is_Integer and last >= _FAR
    require(span[0] == first and (span[1] == last or to_end), "the gradient of other rows along")
    return masked(b, grad_output)


@ragged(aten.select_backward.default)
def select_backward(
    b: Builder, counts: Counts, grad_output: Any, input_sizes: Sequence[Number], dim: int, index: Number
) -> Ragged:
    """The gradient at the place of every row that was read."""
    del counts
    require(isinstance(grad_output, Ragged), "the gradient of one row of")
    dim %= len(input_sizes)
    place = grad_output.dim + (dim <= grad_output.dim)
    return Ragged(
        dense(b, aten.select_backward.default, grad_output.view, input_sizes, dim, index), place, grad_output.rows
    )


def _gradient_of_groups(
    b: Builder, counts: Counts, value: Ragged, total: Number, first: sympy.Expr, last: sympy.Expr
) -> Ragged:
    """The gradient of some groups of sorted rows; zero for the others."""
    for rows, sorting in counts.sortings.items():
        if sorting.length != total:
            continue
        whole = Ragged(rows.present, 0, rows)
        to_end = last == total or (last.is_Integer and last >= _FAR)
        start = groups_up_to(b, counts, whole, first, sorting.groups)
        stop = sorting.groups if to_end else groups_up_to(b, counts, whole, last, sorting.groups)
        if start is None or stop is None or stop <= start:
            continue
        parts = [stretch(b, whole, number, sorting.groups) for number in range(start, stop)]
        if (parts[0] if len(parts) == 1 else joined(b, parts)).rows != value.rows:
            continue
        shape = b.shape(value.view)
        before, after = shape[: value.dim], shape[value.dim + 1 :]
        split = b.reshape(value.view, [*before, stop - start, sorting.length, *after])
        padded = b.pad(split, value.dim, start, sorting.groups)
        return Ragged(b.reshape(padded, [*before, rows.total, *after]), value.dim, rows)
    raise UnsupportedError(UNREPRESENTABLE, "the gradient of a part of rows whose number is read from a tensor")


@ragged(aten.copy.default)
def copy(b: Builder, counts: Counts, self: Any, src: Any) -> Ragged:
    """Rows written over as many rows."""
    del counts
    require(isinstance(self, Ragged) and isinstance(src, Ragged), "a copy to")
    require(self.rows == src.rows and self.dim == src.dim, "a copy to other rows of")
    return dataclasses.replace(src, view=dense(b, aten.copy.default, self.view, src.view))


@ragged(aten.new_zeros.default)
def new_zeros(b: Builder, counts: Counts, self: Any, size: Sequence[Number], dtype: Any) -> Filled | View:
    del self, dtype
    return _filled(b, counts, size)


@ragged(aten.zeros.default)
def zeros(b: Builder, counts: Counts, size: Sequence[Number], dtype: Any) -> Filled | View:
    del dtype
    return _filled(b, counts, size)


def _filled(b: Builder, counts: Counts, size: Sequence[Number]) -> Filled | View:
    dims = [d for d, length in enumerate(size) if counts.occur_in(length)]
    require(len(dims) <= 1, "zeros with more than")
    if not dims:
        return b.full(0, [normalize_size(n) for n in size])  # pyright: ignore[reportArgumentType]  # sizes are whole numbers or expressions
    shape = [1 if d in dims else n for d, n in enumerate(size)]
    return Filled(b.full(0, shape), dims[0], sympy.sympify(size[dims[0]]))  # pyright: ignore[reportArgumentType]  # sizes are whole numbers or expressions
