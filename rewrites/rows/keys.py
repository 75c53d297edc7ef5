"""Bounds of the keys by which rows are sorted: few programs sort."""

from __future__ import annotations

import math
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, IOTA, open_view
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.term import CONSTANT, UNIT, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import within
from verifycompile.rewrites.operators.counted import number_of_places
from verifycompile.rewrites.operators.elementwise import WHERE


def bound_of(b: Builder, key: View) -> int | None:
    """A number above all elements, which are whole and not below zero; None where none is known."""
    places = number_of_places(key)
    if places is not None:
        return places
    if is_indicator(key):
        return 2
    largest = _largest(key)
    return largest + 1 if largest is not None and within(b.pool, key, largest + 1) else None


def _largest(view: View) -> int | None:
    """A number that no element of a sum of counters exceeds. Where a number is put in place of others: that number."""
    if view.term.operation is WHERE and view.coefficient == 1:
        _, then, otherwise = open_view(view).operands
        return max((n for n in (_largest(then), _largest(otherwise)) if n is not None), default=None)
    if view.term.operation is COMBINE and view.coefficient == 1:
        parts = [_largest(part) for part in open_view(view).operands]
        return None if None in parts else sum(part for part in parts if part is not None)
    if view.term.operation is UNIT:
        return math.ceil(view.coefficient) if isinstance(view.coefficient, Fraction) else None
    if view.term.operation is not IOTA or not isinstance(view.coefficient, Fraction):
        return None
    total, weight = 0, 1
    for dim, divisor, size in reversed(view.axes[0]):
        if not isinstance(size, int) or not isinstance(divisor, int):
            return None
        total += weight * (divisor if dim == CONSTANT else size - 1)
        weight *= size
    return math.ceil(view.coefficient * total) if view.coefficient > 0 else 0
