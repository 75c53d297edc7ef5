"""Masks that compare values at two places: those of documents that stand in one sequence, for example.

What is compared with itself at another place is equal where the places are the same. So each position of a document
sees itself, if the other masks let it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from verifycompile.ir.algebra import open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.inequality import is_attained
from verifycompile.ir.relabel import UnalignedError, substitute
from verifycompile.ir.term import Digit, View


def hold_at_same_place(masks: Sequence[View], bound: Collection[int]) -> bool:
    """Whether all masks hold for all other indices where the indices ``bound`` are the place that one compares with."""
    for mask in masks:
        if mask.term.operation is not EQUAL:
            continue
        left, right = open_view(mask).operands
        for one, other in ((left, right), (right, left)):
            place: dict[int, Sequence[Digit]] = {dim: [(dim, 1, size)] for dim, size in enumerate(mask.shape)}
            for own, axis in zip(one.axes, other.axes, strict=False):
                place |= {digit[0]: own for digit in axis if digit[0] in bound}
            with contextlib.suppress(UnalignedError):
                if all(_holds_everywhere(substitute(view, place, view.shape)) for view in masks):
                    return True
    return False


def _holds_everywhere(mask: View) -> bool:
    if mask.term.operation is not EQUAL:
        return is_attained(mask, ())
    left, right = open_view(mask).operands
    return left == right
