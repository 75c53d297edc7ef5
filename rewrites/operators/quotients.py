"""Quotient and remainder of counters and of places: their upper and their lower digits."""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import IOTA, iota
from verifycompile.ir.relabel import UnalignedError, extract, merge_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import exact_quotient
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import proved
from verifycompile.rewrites.operators.counted import number_of_places, smallest_and_largest


def counted(b: Builder, left: View, right: object) -> tuple[View, View] | None:
    """Quotient and remainder by a number: the upper and the lower digits of a counter, or zero and what is below it."""
    if isinstance(right, int) and _is_below(left, right):
        return b.full(0, b.shape(left)), left
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


def _is_below(view: View, number: int) -> bool:
    """Whether every element is at least zero and less than the number."""
    places, ends = number_of_places(view), smallest_and_largest(view)
    return (places is not None and places <= number) or (ends is not None and ends[0] >= 0 and ends[1] < number)


def is_from_zero_on(b: Builder, view: View) -> bool:
    """Whether no element is negative, of the numbers that the spec takes without error."""
    used = proved(b.pool.facts, view, 1, lambda value, _: value >= 0)
    b.pool.assumptions.update(dict.fromkeys(used or ()))
    return used is not None


def truncated_share(b: Builder, view: View) -> View | None:
    """The whole part of a counter times ``1 / m``; only for powers of two, by which torch divides exactly."""
    share = view.coefficient
    if not isinstance(share, Fraction) or share.numerator != 1 or share.denominator & (share.denominator - 1):
        return None
    found = counted(b, view.unscaled(), share.denominator)
    return None if found is None else found[0]
