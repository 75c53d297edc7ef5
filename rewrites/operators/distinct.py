"""Indices of which no two elements are equal, because a sort found them."""

from __future__ import annotations

from verifycompile.ir.algebra import COMBINE, IOTA, open_view
from verifycompile.ir.met_once import is_found_once
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.counted import smallest_and_largest

TOPK = Operation("topk_values"), Operation("topk_indices", whole=True, places=True, distinct=True)
SORT = Operation("sort_values"), Operation("sort_indices", whole=True, places=True, distinct=True)


def _counts(index: View, dim: int) -> bool:
    """Whether elements are a multiple of their position and what is the same for all of them, and none is negative.

    A negative one counts from the end, so that it may be the place of another one.
    """
    if smallest_and_largest(index) is None:
        return False
    parts = open_view(index).operands if index.term.operation is COMBINE else (index,)
    varying = [part for part in parts if part.uses(dim)]
    if len(varying) != 1 or varying[0].term.operation is not IOTA or varying[0].is_zero:
        return False
    (axis,) = varying[0].axes
    return [digit for digit in axis if digit[0] == dim] == [(dim, 1, index.shape[dim])]


def is_distinct(b: Builder, index: View, position: int) -> bool:
    """Whether no two elements of ``index`` along ``position`` are equal: places found by a sort, a counter, or one."""
    dim = b.dim(index, position)
    return index.shape[dim] == 1 or _counts(index, dim) or is_found_once(index, dim)
