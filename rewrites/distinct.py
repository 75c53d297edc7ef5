"""Indices of which no two elements are equal, because a sort found them."""

from __future__ import annotations

from verifycompile.ir.algebra import COMBINE, IOTA, open_view
from verifycompile.ir.term import CONSTANT, Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.counted import smallest_and_largest

TOPK = Operation("topk_values"), Operation("topk_indices", whole=True, places=True)
SORT = Operation("sort_values"), Operation("sort_indices", whole=True, places=True)
DISTINCT_ALONG_FRESH = (TOPK[1], SORT[1])
"""Operations whose elements are places of the dimension that they read, each place at most once."""


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
    if index.shape[dim] == 1 or _counts(index, dim):
        return True
    if index.term.operation not in DISTINCT_ALONG_FRESH or index.coefficient != 1:
        return False
    (fresh,) = index.term.fresh
    others = [digit for number, axis in enumerate(index.axes) if number != fresh for digit in axis]
    own = [digit for digit in index.axes[fresh] if digit[0] != CONSTANT]
    return own == [(dim, 1, index.shape[dim])] and all(digit[0] != dim for digit in others)
