"""Grouped matrix products: rows in consecutive groups, each group with a matrix of its own; and histograms.

Row ``i`` is in group ``g`` where ``ends[g - 1] <= i < ends[g]``: an indicator, so that a grouped product is a
contraction, and every dimension but that of the groups may be sharded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.bounds import within
from verifycompile.rewrites.operators.elementwise import INTEGER_DTYPES, REAL_DTYPES, require_exact, require_real
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator
from verifycompile.rewrites.rows.keys import bound_of

aten = torch.ops.aten

IN_BIN = Operation("in_bin", indicator=True)
"""Whether a value falls into a bin of a histogram; attributes: number of bins, lower and upper end."""


def group_of_row(b: Builder, ends: View, rows: Size) -> View:
    """Indicator ``[group, row]``. ``ends``: for every group the row after its last one."""
    (count,) = b.shape(ends)
    starts = b.pad(b.narrow(ends, 0, 0, count - 1), 0, 1, count) if count != 1 else b.full(0, (1,))
    row = b.unsqueeze(b.iota(rows), 0)
    begun = b.less_equal(b.unsqueeze(starts, 1), row)
    return b.mul(begun, b.less(row, b.unsqueeze(ends, 1)))


def grouped_product(b: Builder, rows: View, matrices: View, ends: View) -> View:
    """``rows[i] @ matrices[group of i]``; zero for a row behind the last group."""
    groups = group_of_row(b, ends, b.shape(rows)[0])
    return b.contraction("g i, i k, g k n -> i n", groups, rows, matrices)


def grouped_outer_product(b: Builder, left: View, right: View, ends: View) -> View:
    """For every group ``left[:, rows].T @ right[rows]``, where the rows are the first dimension of both."""
    groups = group_of_row(b, ends, b.shape(left)[0])
    return b.contraction("g i, i k, i n -> g k n", groups, left, right)


@operator(aten._grouped_mm.default)
def grouped_mm(b: Builder, self: View, mat2: View, offs: View | None, out_dtype: Any) -> View:
    """Products of matrices, one a group. ``offs``: where the groups of rows, of columns, or of summands end.

    The result is not defined for rows or columns behind the last group, of which it is assumed that there are none.
    """
    if out_dtype not in (None, *REAL_DTYPES):
        raise UnsupportedError(UNSUPPORTED, f"a grouped product with out_dtype={out_dtype}")
    ranks = (b.rank(self), b.rank(mat2))
    if offs is None:
        return b.contraction("g m k, g k n -> g m n", self, mat2)
    if ranks == (2, 2):
        return grouped_outer_product(b, b.transpose(self, 0, 1), mat2, offs)
    text = "the groups of a grouped product (`aten._grouped_mm`) take all rows"
    b.pool.assumptions[Assumption(text, AssumptionKind.VALUES)] = None
    if ranks == (2, 3):
        return grouped_product(b, self, mat2, offs)
    if ranks == (3, 2):
        turned = grouped_product(b, b.transpose(mat2, 0, 1), b.transpose(self, 1, 2), offs)
        return b.transpose(turned, 0, 1)
    raise UnsupportedError(UNSUPPORTED, "a grouped product of batches with ends")


def _counts_each(b: Builder, view: View, bins: int, low: Number, high: Number) -> bool:
    """Whether all elements are whole numbers from 0 on, and those below ``bins`` alone have the bin of their number."""
    bound = bound_of(b, view)
    if bound is None or not isinstance(low, int | float) or not isinstance(high, int | float):
        return False
    if bound > bins and high >= bins:
        return False
    first, width = Fraction(low), Fraction(high) - Fraction(low)
    places = [min(math.floor((number - first) * bins / width), bins - 1) for number in range(bins)]
    return Fraction(low) <= 0 and bins - 1 <= Fraction(high) and places == list(range(bins))


@operator(aten.histc.default)
def histc(b: Builder, self: View, bins: int, min: Number, max: Number) -> View:
    """How many elements fall into each bin."""
    found = in_bins(b, self, bins, min, max)
    return b.sum(found, list(range(b.rank(self)))) if b.rank(self) else found


@operator(aten.bincount.default)
def bincount(b: Builder, self: View, minlength: int) -> View:
    """How often each number occurs: of numbers that are known to be less than ``minlength``, so many counts."""
    bound = bound_of(b, self)
    if (bound is None or bound > minlength) and not within(b.pool, self, minlength):
        raise UnsupportedError(UNSUPPORTED, f"bincount of numbers that may not be within [0, {minlength})")
    return b.sum(b.equal(b.unsqueeze(self, 1), b.iota(minlength)), [0])


def in_bins(b: Builder, view: View, bins: int, low: Number, high: Number) -> View:
    """For each element, along a new last dimension, whether it falls into each of the bins."""
    if b.call.dtypes.get("self") in INTEGER_DTYPES:  # on a GPU alone; the ends are truncated to whole numbers there
        require_exact(b, min=low, max=high)
    else:
        require_real(b, "self")
    if low == high and bins == 1:
        return b.full(1, (*b.shape(view), 1))  # one bin from the smallest to the largest element
    if low == high:
        raise UnsupportedError(UNSUPPORTED, "histc between the smallest and the largest element")
    wide = b.unsqueeze(view, b.rank(view))
    if _counts_each(b, view, bins, low, high):
        return b.equal(wide, b.iota(bins))
    return b.pointwise(IN_BIN, wide, b.iota(bins), attributes=(bins, low, high))
