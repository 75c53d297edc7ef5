"""Sums of squares that were multiplied out: ``sum (u + e) ** 2`` stands as ``sum u ** 2 + 2 e sum u + n e ** 2``.

The squares of a norm are noted where it is built, and known once both programs are lowered again: what its elements are
multiplied out to shows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, multiply_views, open_view, sum_over
from verifycompile.ir.size import product
from verifycompile.ir.term import UNIT, TermPool, View


def is_sum_of_squares(pool: TermPool, view: View) -> bool:
    """Whether the view is a positive multiple of what was built as a sum of squares, or of the sum of
    ``(u + e) ** 2`` for some value u and number e.
    """
    if not isinstance(view.coefficient, Fraction) or view.coefficient <= 0:
        return False
    if view.term in pool.squares or view.term.operation is not COMBINE:
        return view.term in pool.squares
    summands = open_view(view.unscaled()).operands
    constant = next((v.coefficient for v in summands if v.term.operation is UNIT), None)
    if not isinstance(constant, Fraction):
        return False
    return any(square == view.unscaled() for v in summands for square in _squares(pool, v, constant))


def _squares(pool: TermPool, summand: View, constant: Fraction) -> Iterator[View]:
    """Sums of ``(u + e) ** 2`` of which ``summand`` is the sum of ``u ** 2`` and ``constant`` that of ``e ** 2``."""
    scale, opened = summand.coefficient, open_view(summand)
    if summand.term.operation is not CONTRACT or len(opened.operands) != 2 or not isinstance(scale, Fraction):
        return
    value, other = opened.operands
    count = product(opened.shape[d] for d in opened.summed)
    if value != other or scale <= 0 or not isinstance(count, int):
        return
    square = constant / (scale * count)
    root = Fraction(math.isqrt(abs(square.numerator)), math.isqrt(square.denominator))
    for number in (root, -root) if root * root == square else ():
        shifted = combine(pool, [value, pool.constant(number, value.shape)])
        yield sum_over(pool, multiply_views(pool, shifted, shifted), list(opened.summed)).scaled(scale)
