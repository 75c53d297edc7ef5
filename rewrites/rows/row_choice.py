"""Rows chosen one by one: places where a mask holds, and rows of tensors at such places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.size import product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.rows.ragged import are_in_parts, ragged
from verifycompile.rewrites.rows.row_masks import without_masks_of_rows
from verifycompile.rewrites.rows.row_values import Counts, Ragged, Rows, Sorted, Unsorted
from verifycompile.rewrites.rows.rows import dense, numbers_of_groups, parts_of_table, put_back, require, row_numbers

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


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
    wholes = [place.view if isinstance(place, Ragged) else place for place in indices]
    if not are_in_parts(b, places):
        found = Ragged(dense(b, aten.index.Tensor, self, wholes), given[0], first.rows)
        return without_masks_of_rows(b, counts, found)
    results: list[View] = []
    for start, size in parts_of_table(counts, first.rows):
        at = [None if whole is None else b.narrow(whole, 0, start, size) for whole in wholes]
        results.append(dense(b, aten.index.Tensor, self, at))
    return Ragged(b.concatenate(results, given[0]), given[0], first.rows)


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
