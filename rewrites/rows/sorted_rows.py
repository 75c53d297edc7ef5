"""Rows sorted by a whole number below a bound, such as tokens sorted by their expert.

In the order of a stable sort by ``key`` the rows are those of a table ``(key, row)``, read row by row, at which ``key``
is the key of the row. So what is computed row by row of sorted rows, and put back to where the rows came from, is
computed of each row where it is; and the rows of one key are a stretch of that table. Of a sort that is not stable
this holds but for the order of the rows with one key, which ``ties`` keeps apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import sympy
import torch

from verifycompile.ir.algebra import open_view
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.size import Size, exact_quotient, normalize_size, product
from verifycompile.ir.term import UNIT, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.collective import group_ranks
from verifycompile.rewrites.operators.cumulative import cumulative_sum
from verifycompile.rewrites.operators.elementwise import REAL_DTYPES, WHERE
from verifycompile.rewrites.operators.exchange import exchange
from verifycompile.rewrites.operators.grouped import in_bins
from verifycompile.rewrites.registry import UNREPRESENTABLE, Group, UnsupportedError
from verifycompile.rewrites.rows.keys import bound_of
from verifycompile.rewrites.rows.ragged import ragged
from verifycompile.rewrites.rows.row_values import Counts, Ragged, Rows, Sorted, Sorting
from verifycompile.rewrites.rows.rows import (
    as_unsorted,
    before_and_after_cut,
    dense,
    group_numbers,
    has_groups,
    numbers_of_groups,
    require,
    row_numbers,
)

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

# ------------------------------------------------------------------------------------------------ sorting


@ragged(aten.sort.stable)
def sort_stable(b: Builder, counts: Counts, self: Any, stable: bool | None, dim: int, descending: bool) -> Any:
    return _sorted(b, counts, self, dim, descending, bool(stable))


@ragged(aten.sort.default)
def sort(b: Builder, counts: Counts, self: Any, dim: int, descending: bool) -> Any:
    return _sorted(b, counts, self, dim, descending, False)


def _sorted(b: Builder, counts: Counts, value: Any, dim: int, descending: bool, stable: bool) -> tuple[Any, Any]:
    unsorted = as_unsorted(counts, b, value)
    if unsorted is not None:
        require(not descending and unsorted.source is None, "a sort of the places of")
        return b.iota(unsorted.length), unsorted
    require(isinstance(value, View | Ragged) and not descending, "a sort of")
    key = value.view if isinstance(value, Ragged) else value
    require(b.rank(key) == 1, "a sort of other than a row of")
    groups = bound_of(b, key)
    require(groups is not None, "a sort by unbounded numbers of")
    assert groups is not None
    (length,) = b.shape(key)
    group = b.unsqueeze(b.iota(groups), 1)
    present = b.equal(b.unsqueeze(key, 0), group)
    total = product((groups, length))
    if isinstance(value, Ragged):
        require(value.rows.defined is None, "memory that nothing was written to, in rows of")
        present = b.mul(present, b.unsqueeze(value.rows.present, 0))
        ties: Hashable = value.rows.ties if stable and value.rows.ties is None else object()
        rows = Rows(total, b.reshape(present, (total,)), None, ties, (groups, *value.rows.table))
        places: Any = Sorted(value.rows, rows, groups)
    else:
        index = dense(b, aten.sort.stable, value, stable=stable, dim=dim, descending=descending)[1]
        rows = Rows(total, b.reshape(present, (total,)), None, None if stable else index, (groups, length))
        sorting = Sorting(value, index, groups, length, _cut(value, groups))
        counts.sortings[rows] = sorting
        places = Ragged(row_numbers(b, groups, length), 0, rows)
        return Ragged(numbers_of_groups(b, sorting), 0, rows), places
    return Ragged(group_numbers(b, groups, length), 0, rows), places


def _cut(key: View, groups: int) -> int | None:
    """How many groups are before the largest key, where that is a number put in place of others, as a condition is."""
    if groups == 2 and is_indicator(key):
        return 1
    if key.term.operation is not WHERE or key.coefficient != 1 or groups == 1:
        return None
    put = any(v.term.operation is UNIT and v.coefficient == groups - 1 for v in open_view(key).operands)
    return groups - 1 if put else None


# ------------------------------------------------------------------------------------------------ groups of rows


@ragged(aten.histc.default)
def histc(b: Builder, counts: Counts, self: Any, bins: int, min: Number, max: Number) -> View:
    """How many of the rows that are there hold a number of each bin."""
    require(isinstance(self, Ragged) and b.rank(self.view) == 1, "a histogram of")
    parts = before_and_after_cut(b, counts, self)
    require(self.rows.defined is None, "memory that nothing was written to, in rows of")
    found = [b.contraction("i v, i -> v", in_bins(b, p.view, bins, min, max), p.rows.present) for p in parts]
    sorting = counts.sortings.get(self.rows)
    if bins == 1 and min == max and sorting is not None:
        return b.full(sorting.length, (1,))  # all rows of a tensor
    return b.add(*found)


@ragged(aten._grouped_mm.default)
def grouped_mm(b: Builder, counts: Counts, self: Any, mat2: Any, offs: Any, out_dtype: Any) -> Any:
    """Each group of rows with a matrix of its own; or the products of two groups of rows.

    What is in rows behind the last group is not defined.
    """
    require(out_dtype in (None, *REAL_DTYPES), "a grouped product of another dtype of")
    return grouped_product_of_rows(b, counts, self, mat2, offs, zeros_behind=False)


def grouped_product_of_rows(b: Builder, counts: Counts, self: Any, mat2: Any, ends: Any, *, zeros_behind: bool) -> Any:
    """``zeros_behind``: rows behind the last group are zero; else they are not defined."""
    require(isinstance(self, Ragged) and isinstance(ends, View), "a grouped product of other than rows of")
    (groups,) = b.shape(ends)
    left = _rows_with_ends(b, counts, self, ends, groups)
    if isinstance(mat2, View) and b.rank(mat2) == 3 and self.dim == 0:
        products = [_product_by_groups(b, part, mat2) for part in left]
        found = products[0] if len(products) == 1 else b.concatenate(products, 0)
        covered = sum((sympy.sympify(part.rows.total) for part in left), sympy.Integer(0)) == self.rows.total
        return Ragged(found, 0, self.rows) if covered else _with_rows_behind(b, counts, self.rows, found, zeros_behind)
    if not isinstance(mat2, Ragged) or (self.dim, mat2.dim) != (1, 0):
        raise UnsupportedError(UNREPRESENTABLE, "a grouped product over other rows than those of the groups")
    same = dataclasses.replace(mat2.rows, defined=None) == dataclasses.replace(self.rows, defined=None)
    require(same, "a grouped product over other rows than those of the groups, along")
    right = _rows_with_ends(b, counts, mat2, ends, groups)
    require(len(left) == len(right), "a grouped product of memory that nothing was written to, in rows of")
    return b.add(*(_product_over_rows(b, *parts, groups) for parts in zip(left, right, strict=True)))


def _product_by_groups(b: Builder, rows: Ragged, matrices: View) -> View:
    """The rows of each group times its matrix."""
    (groups, inner, outer), total = b.shape(matrices), rows.rows.total
    split = b.reshape(rows.view, (groups, _quotient(total, groups), inner))
    return b.reshape(b.contraction("e i k, e k n -> e i n", split, matrices), (total, outer))


def _product_over_rows(b: Builder, left: Ragged, right: Ragged, groups: Size) -> View:
    """For each group the sum over its rows of the products of both."""
    length = _quotient(left.rows.total, groups)
    first = b.reshape(left.view, (b.shape(left.view)[0], groups, length))
    second = b.reshape(right.view, (groups, length, b.shape(right.view)[1]))
    present = b.reshape(left.rows.present, (groups, length))
    return b.contraction("k e i, e i n, e i -> e k n", first, second, present)


def _quotient(total: Size, groups: Size) -> Size:
    found = exact_quotient(total, groups)
    assert found is not None
    return found


def _rows_with_ends(b: Builder, counts: Counts, value: Ragged, ends: View, groups: Size) -> list[Ragged]:
    """All rows, or those before the cut, where these are of so many groups, which have these ends."""
    whole = dataclasses.replace(value, rows=dataclasses.replace(value.rows, defined=None))
    parts = before_and_after_cut(b, counts, whole)
    for rows in ([whole], parts[:1]):
        (found,) = rows
        length = exact_quotient(found.rows.total, groups)
        defined = value.rows.defined is None or value.rows.defined == found.rows.total
        if length is not None and defined and _are_ends(b, counts, ends, found.rows, groups, length):
            return parts if found is whole and groups == 1 else rows
    raise UnsupportedError(UNREPRESENTABLE, "a grouped product with other ends than those of the groups of rows")


def _with_rows_behind(b: Builder, counts: Counts, rows: Rows, value: View, zeros: bool) -> Ragged:
    """Rows of which those behind the ``value`` are zero, or not defined."""
    total, width = b.shape(value)
    behind = normalize_size(sympy.sympify(rows.total) - total)
    view = b.concatenate([value, b.full(0, (behind, width))], 0)
    result = dataclasses.replace(rows, defined=None if zeros else total)
    counts.sortings[result] = counts.sortings[rows]
    return Ragged(view, 0, result)


def _are_ends(b: Builder, counts: Counts, ends: View, rows: Rows, groups: Size, length: Size) -> bool:
    """Whether each of the numbers is that of the rows in the groups up to it."""
    sorting = counts.sortings.get(rows)
    if groups == 1 and sorting is not None and ends == cumulative_sum(b, b.full(sorting.length, (1,)), 0):
        return True  # all rows of a tensor
    sizes = b.sum(b.reshape(rows.present, (groups, length)), [1])
    return ends == cumulative_sum(b, sizes, 0)


# ------------------------------------------------------------------------------------------------ between ranks


@ragged(c10d.all_to_all_single.default)
def all_to_all_single(
    b: Builder, counts: Counts, input: Any, output_split_sizes: Any, input_split_sizes: Any, group_name: Any
) -> Ragged:
    """Each rank of the group gets a stretch of every rank's table, one after the other.

    Both lists of sizes must be the numbers of rows in these stretches, before and after.
    """
    require(isinstance(input, Ragged) and isinstance(group_name, Group) and input.dim == 0, "an exchange of parts of")
    require(input.rows.defined is None, "memory that nothing was written to, in rows of")
    ranks = group_ranks(b, group_name)
    sent = len(input_split_sizes) == ranks and has_groups(b, counts, input.rows, input_split_sizes)
    require(sent, "an exchange of other rows than the groups of")
    present = exchange(b, input.rows.present, 0, 0, group_name)
    table = _exchanged_table(input.rows.table, ranks)
    rows = Rows(input.rows.total, present, None, _exchanged(input.rows.ties, group_name), table)
    received = len(output_split_sizes) == ranks and has_groups(b, counts, rows, output_split_sizes)
    require(received, "an exchange in which ranks expect other rows than they get of")
    return Ragged(exchange(b, input.view, 0, 0, group_name), 0, rows)


def _exchanged_table(table: tuple[Size, ...], ranks: int) -> tuple[Size, ...]:
    first = exact_quotient(table[0], ranks) if table else None
    return () if first is None else (ranks, *(() if first == 1 else (first,)), *table[1:])


def _exchanged(ties: Hashable, group: Group) -> Hashable:
    """Rows that are sent back are in the order in which they were."""
    if ties is None:
        return None
    if isinstance(ties, tuple) and len(ties) == 3 and ties[0] == "exchanged" and ties[1] == group:
        return ties[2]
    return ("exchanged", group, ties)
