"""Tensors of a size that the program reads from data: tokens of one expert, places where a mask holds.

Such a tensor is some rows, in order, of a tensor whose size is known: the rows at which an indicator is one. What works
on every row alone works on all of them; a sum over rows, or a product that contracts them, takes the indicator as a
factor. Operators not declared here are unsupported on such tensors: what an operator does to rows that are not there
must be known.

Rows between two numbers are written by the numbers as well, so that consecutive parts can be put together again.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from verifycompile.ir.algebra import IOTA, has_infinity, open_view
from verifycompile.ir.indicator import EQUAL, is_indicator
from verifycompile.ir.pieces import concatenated_dim
from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.collective import reduce_over
from verifycompile.rewrites.common_masks import concatenate_under_masks
from verifycompile.rewrites.ordering import is_distinct
from verifycompile.rewrites.registry import (
    UNREPRESENTABLE,
    Declaration,
    Handler,
    UnsupportedError,
    bind,
    declaration_of,
)
from verifycompile.rewrites.rows import (
    Counts,
    Filled,
    Ragged,
    Rows,
    Sorted,
    Unsorted,
    as_unsorted,
    before_and_after_cut,
    between,
    dense,
    groups_of,
    groups_up_to,
    has_groups,
    joined,
    masked,
    numbers_of_groups,
    parts_of_table,
    put_back,
    require,
    row_numbers,
    settled,
    sorted_rows,
    stretch,
)
from verifycompile.rewrites.values import Group, Pieces
from verifycompile.torch_interface.schema import is_pointwise

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

_FAR = 2**31
"""A bound of a slice beyond every size means the end."""


_HANDLERS: dict[object, Declaration] = {}
_POINTWISE_BESIDES = frozenset(
    {
        aten._to_copy.default, aten.detach.default, aten.alias.default, aten.zeros_like.default,
        aten.ones_like.default, aten.full_like.default, aten.floor_divide.default, aten.floor_divide.Scalar,
        aten.clone.default,
    }
)  # fmt: skip
"""Work row by row without torch's tag for it."""

_REPLACED: dict[object, dict[str, int]] = {
    aten.masked_fill.Scalar: {"self": 1},
    aten.masked_fill.Tensor: {"self": 1},
    aten.where.self: {"self": 0, "other": 1},
}
"""For each operand that a mask may replace, where the mask does."""


def ragged(*targets: object) -> Callable[[Handler], Handler]:
    """Register a handler ``(builder, counts, arguments by their schema names) -> Ragged | View | Filled``."""

    def register(handler: Handler) -> Handler:
        names = frozenset(list(inspect.signature(handler).parameters)[2:])
        location = f"{handler.__code__.co_filename}:{handler.__code__.co_firstlineno}"
        for target in targets:
            _HANDLERS[target] = Declaration(target, handler, names, location)
        return handler

    return register


def ragged_declarations() -> Mapping[object, Declaration]:
    """All declarations, by target."""
    return dict(_HANDLERS)


def call_ragged(b: Builder, counts: Counts, target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator with ragged operands, sizes or results."""
    declaration = _HANDLERS.get(target)
    if declaration is not None:
        return declaration.handler(b, counts, **bind(declaration, args, kwargs))
    plain = declaration_of(target)
    if plain is not None and (is_pointwise(target) or target in _POINTWISE_BESIDES):
        return _pointwise(b, counts, plain, bind(plain, args, kwargs))
    raise UnsupportedError(UNREPRESENTABLE, f"`{target}` on a dimension whose size is read from a tensor")


def _pointwise(b: Builder, counts: Counts, declaration: Declaration, bound: dict[str, Any]) -> Ragged:
    operands = [value for value in bound.values() if isinstance(value, Ragged)]
    require(bool(operands), f"`{declaration.target}` makes")
    first = operands[0]
    from_end = first.dim - b.rank(first.view)
    rows = dataclasses.replace(first.rows, defined=None)
    for operand in operands:
        same = dataclasses.replace(operand.rows, defined=None) == rows
        aligned = operand.dim - b.rank(operand.view) == from_end
        require(same and aligned, f"`{declaration.target}` pairs other rows along")
    for value in bound.values():
        if isinstance(value, View) and b.rank(value) >= -from_end:
            require(b.shape(value)[from_end] == 1, f"`{declaration.target}` pairs other rows along")
        require(not isinstance(value, (sympy.Basic, Filled)), f"`{declaration.target}` computes with the size of")
    spans = parts_of_table(counts, rows) if are_in_parts(b, operands) else [(0, rows.total)]
    results = [_for_rows(b, declaration, bound, from_end, start, size) for start, size in spans]
    dim = b.rank(results[0]) + from_end
    view = results[0] if len(results) == 1 else b.concatenate(results, dim)
    return Ragged(view, dim, dataclasses.replace(rows, defined=_defined(b, declaration, bound, spans)))


def are_in_parts(b: Builder, values: Sequence[Ragged]) -> bool:
    """Whether some are written as parts of their table, one after the other."""
    return any(concatenated_dim(value.view) == b.dim(value.view, value.dim) for value in values)


def _for_rows(
    b: Builder, declaration: Declaration, bound: dict[str, Any], from_end: int, start: Size, size: Size
) -> View:
    """The operator on some consecutive rows of the table."""
    whole = {
        name: b.narrow(value.view, value.dim, start, size) if isinstance(value, Ragged) else value  # pyright: ignore[reportArgumentType]
        for name, value in bound.items()
    }
    shapes = [b.shape(value) for value in whole.values() if isinstance(value, View)]
    rank = max(map(len, shapes))
    shape = tuple(next((s[k] for s in shapes if len(s) >= -k and s[k] != 1), 1) for k in range(-rank, 0))
    b.call = dataclasses.replace(b.call, shape=shape)
    return declaration.handler(b, **whole)


def _defined(
    b: Builder, declaration: Declaration, bound: dict[str, Any], spans: Sequence[tuple[Size, Size]]
) -> Size | None:
    """How many rows have a value, where not all: those that all operands have, and those that a mask replaces."""
    undefined = {n: v for n, v in bound.items() if isinstance(v, Ragged) and v.rows.defined is not None}
    if not undefined:
        return None
    (defined,) = {value.rows.defined for value in undefined.values()}
    replaced = _REPLACED.get(declaration.target, {})
    mask = bound.get("mask", bound.get("condition"))
    if len(spans) == 2 and isinstance(mask, Ragged) and len(undefined) == 1 and spans[1][0] == defined:
        (name,) = undefined
        behind = b.narrow(mask.view, mask.dim, *spans[1])  # pyright: ignore[reportArgumentType]
        wanted = b.full(replaced[name], b.shape(behind)) if name in replaced else None
        if behind == wanted:
            return None
    return defined


# ------------------------------------------------------------------------------------------------ parts of a tensor


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
        rows_of = [[b.narrow(t.view, t.dim, start, size) for t in tensors] for start, size in spans]  # pyright: ignore[reportArgumentType]
        joined_rows = [concatenate_under_masks(b, views, dim) for views in rows_of]
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
        return b.full(0, [normalize_size(n) for n in size])  # pyright: ignore[reportArgumentType]
    shape = [1 if d in dims else n for d, n in enumerate(size)]
    return Filled(b.full(0, shape), dims[0], sympy.sympify(size[dims[0]]))  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------ rows one by one


@ragged(aten.nonzero.default)
def nonzero(b: Builder, counts: Counts, self: Any) -> Ragged:
    """The places where a boolean tensor is true, in row-major order."""
    del counts
    require(isinstance(self, View) and is_indicator(self) and b.rank(self) > 0, "places of values along")
    shape = b.shape(self)
    total = product(shape)
    columns: list[View] = []
    for dim, size in enumerate(shape):
        place = b.iota(size)
        for _ in range(len(shape) - 1 - dim):
            place = b.unsqueeze(place, -1)
        for _ in range(dim):
            place = b.unsqueeze(place, 0)
        columns.append(b.unsqueeze(b.reshape(b.expand(place, shape), (total,)), 1))
    view = columns[0] if len(columns) == 1 else b.concatenate(columns, 1)
    return Ragged(view, 0, Rows(total, b.reshape(self, (total,)), None))


@ragged(aten.index.Tensor)
def index(b: Builder, counts: Counts, self: Any, indices: Sequence[Any]) -> Ragged | View:
    """Rows of a tensor at ragged places, or where a mask holds."""
    if isinstance(indices[0], Sorted | Unsorted) and len(indices) == 1:
        return at_places(b, counts, self, indices[0], 0)
    require(isinstance(self, View), "a choice among the rows of")
    given = [k for k, place in enumerate(indices) if place is not None]
    if given == [0] and isinstance(indices[0], View) and b.call.dtypes.get("indices") is torch.bool:
        mask = indices[0]
        rank = b.rank(mask)
        shape = b.shape(self)
        total = product(shape[:rank])
        flat = b.reshape(self, (total, *shape[rank:]))
        return Ragged(flat, 0, Rows(total, b.reshape(mask, (total,)), None))
    places = [indices[k] for k in given]
    first = places[0]
    require(isinstance(first, Ragged) and b.rank(first.view) == 1, "a choice along")
    require(all(isinstance(p, Ragged) and b.rank(p.view) == 1 and p.rows == first.rows for p in places), "a choice by")
    require(given == list(range(given[0], given[-1] + 1)), "a choice along dimensions that are no neighbours, by")
    sorting = counts.sortings.get(first.rows)
    if sorting is not None and self == sorting.key and first.view == row_numbers(b, sorting.groups, sorting.length):
        return Ragged(numbers_of_groups(b, sorting), 0, first.rows)
    parts = before_and_after_cut(b, counts, first) if are_in_parts(b, places) else [first]
    found: list[View] = []
    for number in range(len(parts)):
        at = [p if p is None or len(parts) == 1 else before_and_after_cut(b, counts, p)[number] for p in indices]
        wholes = [place.view if isinstance(place, Ragged) else place for place in at]
        found.append(dense(b, aten.index.Tensor, self, wholes))
    view = found[0] if len(found) == 1 else b.concatenate(found, given[0])
    return Ragged(view, given[0], first.rows)


def at_places(b: Builder, counts: Counts, value: Any, places: Sorted | Unsorted, dim: int) -> Ragged | View:
    """Rows in the order of a sort, or sorted rows where they came from."""
    require(isinstance(value, Ragged), "a choice by the places of a sort along")
    require(value.dim == dim % b.rank(value.view), "a choice by the places of a sort along another than")
    if isinstance(places, Sorted):
        require(value.rows == places.source, "a choice by the places of a sort of other rows of")
        shape = b.shape(value.view)
        wide = b.expand(b.unsqueeze(value.view, dim), [*shape[:dim], places.groups, *shape[dim:]])
        return Ragged(b.reshape(wide, [*shape[:dim], places.rows.total, *shape[dim + 1 :]]), dim, places.rows)
    require(value.rows == places.rows, "a choice by the places of a sort of other rows of")
    return put_back(b, counts, value, places)


@ragged(aten.index_select.default)
def index_select(b: Builder, counts: Counts, self: Any, dim: int, index: Any) -> Ragged | View:
    """Rows of a tensor at ragged places."""
    if isinstance(index, Sorted | Unsorted):
        return at_places(b, counts, self, index, dim)
    require(isinstance(self, View) and isinstance(index, Ragged), "a choice among the rows of")
    chosen = dense(b, aten.index_select.default, self, dim, index.view)
    return Ragged(chosen, dim % b.rank(self), index.rows)


@ragged(aten.gather.default)
def gather(b: Builder, counts: Counts, self: Any, dim: int, index: Any, sparse_grad: bool) -> Ragged:
    """Rows of a tensor at ragged places."""
    del counts, sparse_grad
    require(isinstance(self, View) and isinstance(index, Ragged), "a choice among the rows of")
    require(index.dim == dim % b.rank(self), "a choice along another dimension than")
    return Ragged(dense(b, aten.gather.default, self, dim, index.view), index.dim, index.rows)


@ragged(aten.scatter_add.default)
def scatter_add(b: Builder, counts: Counts, self: Any, dim: int, index: Any, src: Any) -> View:
    """Rows added at ragged places: those that are not there add zero."""
    del counts
    require(isinstance(self, View) and isinstance(index, Ragged) and isinstance(src, Ragged), "rows added at")
    require(src.rows == index.rows and src.dim == index.dim == dim % b.rank(self), "rows added at places of")
    return dense(b, aten.scatter_add.default, self, dim, index.view, masked(b, src))


@ragged(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    b: Builder, counts: Counts, self: Any, indices: Sequence[Any], values: Any, accumulate: bool
) -> View | Ragged | Unsorted:
    """Values added at ragged places: those that are not there add zero. Or sorted rows put back.

    Counted up at the places of a sort, they are for each row its place among the sorted ones.
    """
    unsorted = as_unsorted(counts, b, indices[0]) if len(indices) == 1 else None
    sorted_values = isinstance(values, Ragged) and unsorted is not None and values.rows == unsorted.rows
    if sorted_values and values.dim == 0 and unsorted is not None and (not accumulate or _is_zero(self)):
        require(_has_rows(b, counts, self, unsorted), "sorted rows put back into")
        return put_back(b, counts, values, unsorted)
    counted: Any = values
    if unsorted is not None and unsorted.source is None and isinstance(counted, View) and not accumulate:
        _require_counted_up(b, self, unsorted.length, counted)
        return unsorted
    if isinstance(indices[0], Unsorted) and len(indices) == 1 and isinstance(values, View):
        fits = isinstance(self, View) and self.is_zero and indices[0].source is None
        require(fits, "rows put at places of a sort of")
        return sorted_rows(b, indices[0], values)
    if len(indices) == 1 and isinstance(self, View) and isinstance(indices[0], View):
        return _put_by_mask(b, self, indices[0], values, accumulate)
    if len(indices) == 1 and isinstance(self, View) and not accumulate:
        return _overwritten(b, self, indices[0], values)
    require(accumulate and isinstance(values, Ragged) and isinstance(self, View), "values put at places of")
    places = [place for place in indices if place is not None]
    same = all(isinstance(p, Ragged) and b.rank(p.view) == 1 and p.rows == values.rows for p in places)
    skipped = next(k for k, place in enumerate(indices) if place is not None)
    together = len(places) == len(indices) - skipped
    require(same and together and values.dim == skipped, "values put at places of")
    result = self
    for number, part in enumerate(before_and_after_cut(b, counts, values)):
        at = [None if place is None else before_and_after_cut(b, counts, place)[number].view for place in indices]
        result = dense(b, aten.index_put.default, result, at, masked(b, part), True)
    return result


def _require_counted_up(b: Builder, view: Any, length: object, values: View) -> None:
    """Places counted up overwrite all that was there."""
    everywhere = isinstance(view, View) and b.shape(view) == b.shape(values) == (length,)
    require(everywhere and values == b.iota(b.shape(values)[0]), "numbers put at places of a sort of")


def _is_zero(value: Any) -> bool:
    return value.row.is_zero if isinstance(value, Filled) else getattr(value, "view", value).is_zero


def _has_rows(b: Builder, counts: Counts, value: Any, places: Unsorted) -> bool:
    """Whether a tensor has as many rows as were sorted."""
    if isinstance(value, View):
        return places.source is None and b.shape(value)[0] == places.length
    if isinstance(value, Ragged):
        return value.dim == 0 and value.rows in (places.source, places.rows)
    return value.dim == 0 and settled(b, counts.number(b, value.length)) == b.sum(places.rows.present, [0])


def _put_by_mask(b: Builder, view: View, mask: View, values: Any, accumulate: bool) -> View:
    """Values put, or added, where a mask holds."""
    require(b.call.dtypes.get("indices") is torch.bool, "values put at places of")
    shape, rank = b.shape(view), b.rank(mask)
    total = product(b.shape(mask))
    flat, rows = b.reshape(view, (total, *shape[rank:])), Rows(total, b.reshape(mask, (total,)), None)
    values = _as_rows(b, values, rows)
    _require_numbers(view, values.view)
    added = values.view if accumulate else b.sub(values.view, flat)
    return b.reshape(b.add(flat, masked(b, dataclasses.replace(values, view=added))), shape)


def _overwritten(b: Builder, view: View, place: Any, values: Any) -> View:
    """Values put at ragged places that are all different: the difference to what was there is added."""
    require(isinstance(place, Ragged) and b.rank(place.view) == 1, "values put at places of")
    values = _as_rows(b, values, place.rows)
    _require_numbers(view, values.view)
    require(_is_hit_once(b, place.view, place.rows.present), "values put at places that may be equal of")
    before = dense(b, aten.index.Tensor, view, [place.view])
    added = dataclasses.replace(values, view=b.sub(values.view, before))
    return dense(b, aten.index_put.default, view, [place.view], masked(b, added), True)


def _require_numbers(*views: View) -> None:
    if any(has_infinity(view) for view in views):
        raise UnsupportedError(UNREPRESENTABLE, "infinite values put at places read from data")


def _as_rows(b: Builder, values: Any, rows: Rows) -> Ragged:
    """Values for these rows, which may be equal in all of them."""
    if isinstance(values, Filled) and values.dim == 0:
        return Ragged(b.expand(values.row, (rows.total, *b.shape(values.row)[1:])), 0, rows)
    if isinstance(values, Ragged) and values.rows == rows and values.dim == 0:
        return values
    raise UnsupportedError(UNREPRESENTABLE, "values put at other places of a dimension whose size is read from data")


def _is_hit_once(b: Builder, position: View, present: View) -> bool:
    """Whether a place, the first of the two numbers of a row, is that of at most one row that is there.

    It is where rows are there that hold one number, among numbers that are all different for one place.
    """
    if position.term.operation is not IOTA or position.coefficient != 1 or present.term.operation is not EQUAL:
        return False
    (total,) = b.shape(position)
    (first,) = position.axes
    dim = b.lead
    if len(first) != 1 or first[0][0] != dim or first[0][2] != position.term.shape[0]:
        return False
    length = first[0][1]
    if product((length, first[0][2])) != total or present.coefficient != 1:
        return False
    opened = open_view(b.reshape(present, (first[0][2], length)))
    for index, other in (opened.operands, opened.operands[::-1]):
        view = View(index.coefficient, index.term, opened.shape, index.axes)
        if not other.uses(dim + 1) and is_distinct(b, view, 1):
            return True
    return False


@ragged(aten.index_add.default)
def index_add(b: Builder, counts: Counts, self: Any, dim: int, index: Any, source: Any, alpha: Number) -> View | Ragged:
    """Rows added at ragged places: those that are not there add zero."""
    if isinstance(index, Sorted):
        raise UnsupportedError(UNREPRESENTABLE, "rows added at the places of a sort")
    require(isinstance(self, View) and isinstance(index, Ragged) and isinstance(source, Ragged), "rows added at")
    require(source.rows == index.rows and source.dim == dim % b.rank(self), "rows added at places of")
    return dense(b, aten.index_add.default, self, dim, index.view, masked(b, source), alpha=alpha)


# ------------------------------------------------------------------------------------------------ linear algebra


@ragged(aten.mm.default)
def mm(b: Builder, counts: Counts, self: Any, mat2: Any) -> Ragged | View:
    del counts
    if isinstance(self, Ragged) and isinstance(mat2, View) and self.dim == 0:
        return Ragged(b.contraction("m k, k n -> m n", self.view, mat2), 0, self.rows)
    if isinstance(mat2, Ragged) and isinstance(self, View) and mat2.dim == 1:
        return Ragged(b.contraction("m k, k n -> m n", self, mat2.view), 1, mat2.rows)
    if not isinstance(self, Ragged) or not isinstance(mat2, Ragged):
        raise UnsupportedError(UNREPRESENTABLE, "a product with a dimension whose size is read from a tensor")
    require(self.rows == mat2.rows and (self.dim, mat2.dim) == (1, 0), "a product over other rows along")
    return b.contraction("m k, k n -> m n", masked(b, self), mat2.view)


@ragged(aten.bmm.default)
def bmm(b: Builder, counts: Counts, self: Any, mat2: Any) -> Ragged:
    """A product for each row."""
    del counts
    require(isinstance(self, Ragged) and isinstance(mat2, Ragged), "products of matrices along")
    require(self.rows == mat2.rows and (self.dim, mat2.dim) == (0, 0), "products of matrices, over or along,")
    return Ragged(b.contraction("b m k, b k n -> b m n", self.view, mat2.view), 0, self.rows)


@ragged(aten.addmm.default)
def addmm(b: Builder, counts: Counts, self: Any, mat1: Any, mat2: Any, beta: Number, alpha: Number) -> Ragged | View:
    found = mm(b, counts, mat1, mat2)
    require(isinstance(self, View), "a product added to")
    view = found.view if isinstance(found, Ragged) else found
    if isinstance(found, Ragged) and b.rank(self) >= b.rank(view) - found.dim:
        require(b.shape(self)[found.dim - b.rank(view)] == 1, "a product added to other rows along")
    result = b.combination((beta, self), (alpha, view))
    return Ragged(result, found.dim, found.rows) if isinstance(found, Ragged) else result


@ragged(aten.sum.dim_IntList)
def sum_rows(b: Builder, counts: Counts, self: Any, dim: Sequence[int] | None, keepdim: bool) -> Ragged | View:
    del counts
    rank = b.rank(self.view)
    dims = sorted(d % rank for d in dim) if dim else list(range(rank))
    if self.dim in dims:
        return b.sum(masked(b, self), dims, keepdim)
    before = 0 if keepdim else sum(d < self.dim for d in dims)
    return Ragged(b.sum(self.view, dims, keepdim), self.dim - before, self.rows)


# ------------------------------------------------------------------------------------------------ layout


@ragged(aten.t.default)
def t(b: Builder, counts: Counts, self: Any) -> Ragged:
    del counts
    return Ragged(b.transpose(self.view, 0, 1), 1 - self.dim, self.rows) if b.rank(self.view) == 2 else self


@ragged(aten.transpose.int)
def transpose(b: Builder, counts: Counts, self: Any, dim0: int, dim1: int) -> Ragged:
    del counts
    rank = b.rank(self.view)
    first, second = dim0 % rank, dim1 % rank
    place = second if self.dim == first else first if self.dim == second else self.dim
    return Ragged(b.transpose(self.view, dim0, dim1), place, self.rows)


@ragged(aten.permute.default)
def permute(b: Builder, counts: Counts, self: Any, dims: Sequence[int]) -> Ragged:
    del counts
    order = [d % b.rank(self.view) for d in dims]
    return Ragged(b.permute(self.view, order), order.index(self.dim), self.rows)


@ragged(aten.unsqueeze.default)
def unsqueeze(b: Builder, counts: Counts, self: Any, dim: int) -> Ragged:
    del counts
    place = dim % (b.rank(self.view) + 1)
    return Ragged(b.unsqueeze(self.view, place), self.dim + (place <= self.dim), self.rows)


@ragged(aten.squeeze.dim)
def squeeze(b: Builder, counts: Counts, self: Any, dim: int) -> Ragged:
    del counts
    place = dim % b.rank(self.view)
    # Whether a single row is there is not known.
    require(place != self.dim, "a removal of")
    kept = b.shape(self.view)[place] != 1
    return self if kept else Ragged(b.squeeze(self.view, [place]), self.dim - (place < self.dim), self.rows)


@ragged(aten.select.int)
def select(b: Builder, counts: Counts, self: Any, dim: int, index: Number) -> Ragged:
    del counts
    place = dim % b.rank(self.view)
    require(place != self.dim, "one element of")
    return Ragged(dense(b, aten.select.int, self.view, place, index), self.dim - (place < self.dim), self.rows)


@ragged(aten.unbind.int)
def unbind(b: Builder, counts: Counts, self: Any, dim: int) -> tuple[Ragged, ...]:
    place = dim % b.rank(self.view)
    size = b.shape(self.view)[place]
    require(place != self.dim and isinstance(size, int), "all elements of")
    assert isinstance(size, int)
    return tuple(select(b, counts, self, place, k) for k in range(size))


@ragged(aten.view.default, aten._unsafe_view.default)
def view(b: Builder, counts: Counts, self: Any, size: Sequence[Number]) -> Ragged:
    return _reshaped(b, counts, self, size)


@ragged(aten.reshape.default)
def reshape(b: Builder, counts: Counts, self: Any, shape: Sequence[Number]) -> Ragged:
    return _reshaped(b, counts, self, shape)


def _reshaped(b: Builder, counts: Counts, value: Ragged, size: Sequence[Number]) -> Ragged:
    """Another shape of every row: the dimension of the rows stays where the elements before and after it are kept."""
    shape = b.shape(value.view)
    dims = [d for d, n in enumerate(size) if counts.occur_in(n) or n == -1]
    if not dims and value.rows in counts.sortings:
        dims = [d for d, n in enumerate(size) if n == counts.sortings[value.rows].length][:1]
    require(len(dims) == 1, "another shape of")
    (dim,) = dims
    before, after = list(size[:dim]), list(size[dim + 1 :])
    kept = product(before) == product(shape[: value.dim]) and product(after) == product(shape[value.dim + 1 :])  # pyright: ignore[reportArgumentType]
    require(kept, "another shape of")
    return Ragged(b.reshape(value.view, [*before, value.rows.total, *after]), dim, value.rows)  # pyright: ignore[reportArgumentType]


@ragged(aten.expand.default)
def expand(b: Builder, counts: Counts, self: Any, size: Sequence[Number]) -> Ragged:
    require(isinstance(self, Ragged), "a repetition along")
    added = len(size) - b.rank(self.view)
    dim = self.dim + added
    others = [d for d, n in enumerate(size) if counts.occur_in(n) and d != dim]
    require(not others, "a repetition along")
    shape = [self.rows.total if d == dim else n for d, n in enumerate(size)]
    return Ragged(b.expand(self.view, shape), dim, self.rows)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------ collectives


@ragged(c10d.wait_tensor.default)
def wait_tensor(b: Builder, counts: Counts, tensor: Any) -> Ragged:
    del b, counts
    return tensor


@ragged(c10d.all_reduce.default)
def all_reduce(b: Builder, counts: Counts, input: Any, reduce_op: str, group_name: Any) -> Ragged:
    """Rows are added to those at the same place, so the ranks of the group must have the same rows."""
    del counts
    require(isinstance(input, Ragged) and isinstance(group_name, Group), "all_reduce along")
    require(not any(input.rows.present.uses(axis) for axis in group_name.axes), "all_reduce over other rows along")
    return Ragged(reduce_over(b, input.view, reduce_op, group_name), input.dim, input.rows)
