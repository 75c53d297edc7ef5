"""Indices of which no two elements are equal, because a sort found them."""

from __future__ import annotations

from verifycompile.ir.term import CONSTANT, Operation, View
from verifycompile.rewrites.builder import Builder

TOPK = Operation("topk_values"), Operation("topk_indices", places=True)
SORT = Operation("sort_values"), Operation("sort_indices", places=True)
DISTINCT_ALONG_FRESH = (TOPK[1], SORT[1])
"""Operations whose elements are places of the dimension that they read, each place at most once."""


def is_distinct(b: Builder, index: View, position: int) -> bool:
    """Whether no two elements of ``index`` along ``position`` are equal: places found by a sort, or a single one."""
    dim = b.dim(index, position)
    if index.shape[dim] == 1:
        return True
    if index.term.operation not in DISTINCT_ALONG_FRESH or index.coefficient != 1:
        return False
    (fresh,) = index.term.fresh
    others = [digit for number, axis in enumerate(index.axes) if number != fresh for digit in axis]
    own = [digit for digit in index.axes[fresh] if digit[0] != CONSTANT]
    return own == [(dim, 1, index.shape[dim])] and all(digit[0] != dim for digit in others)
