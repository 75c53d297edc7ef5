"""Grouped matrix products: rows in consecutive groups, each group with a matrix of its own; and histograms.

Row ``i`` is in group ``g`` where ``ends[g - 1] <= i < ends[g]``: an indicator, so that a grouped product is a
contraction, and every dimension but that of the groups may be sharded.
"""

from __future__ import annotations

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.elementwise import require_real
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

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


@operator(aten.histc.default)
def histc(b: Builder, self: View, bins: int, min: Number, max: Number) -> View:
    """How many elements fall into each bin."""
    require_real(b, "self")
    if min == max:
        raise UnsupportedError(UNSUPPORTED, "histc between the smallest and the largest element")
    wide = b.unsqueeze(self, b.rank(self))
    found = b.pointwise(IN_BIN, wide, b.iota(bins), attributes=(bins, min, max))
    return b.sum(found, list(range(b.rank(self))))
