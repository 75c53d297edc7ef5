"""Rows written, or added, at places of which the number is read from data: those that are not there add zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.algebra import IOTA, has_infinity, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.size import product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.distinct import is_distinct
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.rows.ragged import ragged
from verifycompile.rewrites.rows.row_values import Counts, Filled, Ragged, Rows, Sorted, Unsorted
from verifycompile.rewrites.rows.rows import (
    as_unsorted,
    before_and_after_cut,
    dense,
    masked,
    put_back,
    require,
    settled,
    sorted_rows,
)

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


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
