"""Quotient and remainder of counters: their upper and their lower digits."""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import IOTA, iota
from verifycompile.ir.relabel import UnalignedError, extract, merge_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder


def counted(b: Builder, left: View, right: object) -> tuple[View, View] | None:
    """Quotient and remainder of a counter by a number, where they are its upper and its lower digits."""
    if left.term.operation is not IOTA or left.coefficient != 1 or not isinstance(right, int) or right < 1:
        return None
    nothing = b.full(0, b.shape(left))
    if right == 1:
        return left, nothing
    (size,) = left.term.shape
    upper = exact_quotient(size, right)
    if upper is None:
        return None
    if upper == 1:
        return nothing, left
    try:
        parts = [(upper, extract(left.axes[0], right, upper)), (right, extract(left.axes[0], 1, right))]
    except UnalignedError:
        return None
    quotient, rest = (View(ONE, iota(b.pool, length).term, left.shape, (merge_digits(d),)) for length, d in parts)
    return quotient, rest


def truncated_share(b: Builder, view: View) -> View | None:
    """The whole part of a counter times ``1 / m``; only for powers of two, by which torch divides exactly."""
    share = view.coefficient
    if not isinstance(share, Fraction) or share.numerator != 1 or share.denominator & (share.denominator - 1):
        return None
    found = counted(b, view.unscaled(), share.denominator)
    return None if found is None else found[0]
