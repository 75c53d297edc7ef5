"""Exponentials and logarithms: ``exp`` turns sums into products, ``log`` products of positive factors into sums.

With these, the shift by a maximum that every stable softmax carries cancels: ``exp(x - c)`` is
``exp(x) * exp(-c)``, the factor leaves the sum, and ``log(exp(-c) * s)`` is ``-c + log(s)``.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, INFINITY, combine, elementwise, multiply_views, open_view
from verifycompile.ir.indicator import is_indicator, negate
from verifycompile.ir.scalar import ONE, Scalar
from verifycompile.ir.term import Operation, TermPool, View

EXPONENTIAL = Operation("exp")
LOGARITHM = Operation("log")
POWER = Operation("power")


def exponential(pool: TermPool, view: View, power: Callable[[View, Scalar], View]) -> View:
    """``exp(view)``; ``exp(c * log(t))`` is ``t ** c``, for which ``power`` is called."""
    if view.is_zero:
        return pool.constant(ONE, view.shape)
    masked = _exponential_of_mask(pool, view, power)
    if masked is not None:
        return masked
    if view.term.operation is COMBINE:
        summands = [v.scaled(view.coefficient) for v in open_view(view).operands]
        return multiply_views(pool, *(exponential(pool, v, power) for v in summands))
    if view.term.operation is LOGARITHM:
        (base,) = open_view(view).operands
        if is_positive(base) or _is_masked_sum(base):
            return power(base, view.coefficient)
    return elementwise(pool, EXPONENTIAL, (), (view,))


def _exponential_of_mask(pool: TermPool, view: View, power: Callable[[View, Scalar], View]) -> View | None:
    """``exp`` of minus infinity where a mask is one: zero there. None for other values."""
    term = view.term
    if term.operation.name == "where":
        condition, *branches = open_view(view).operands
        then, otherwise = (v.scaled(view.coefficient) for v in branches)
        if is_indicator(condition) and is_minus_infinity(then):
            return multiply_views(pool, negate(pool, condition), exponential(pool, otherwise, power))
        if is_indicator(condition) and is_minus_infinity(otherwise):
            return multiply_views(pool, condition, exponential(pool, then, power))
        return None
    if not isinstance(view.coefficient, Fraction) or view.coefficient >= 0:
        return None
    if term.operation is INFINITY:
        return pool.zero(view.shape)
    if term.operation is not CONTRACT or term.summed:
        return None
    factors = open_view(view).operands
    masks = [v for v in factors if v.term.operation is not INFINITY]
    if len(masks) + 1 != len(factors) or not all(is_indicator(v) for v in masks):
        return None
    return negate(pool, multiply_views(pool, *masks))


def _is_masked_sum(view: View) -> bool:
    """Whether the value is a sum of exponentials under masks: where it is zero, its logarithm is no number."""
    if view.coefficient != 1 or view.term.operation is not CONTRACT:
        return False
    return all(is_positive(v) or is_indicator(v) for v in view.term.operands)


def is_minus_infinity(view: View) -> bool:
    """Whether every element is minus infinity."""
    return view.term.operation is INFINITY and isinstance(view.coefficient, Fraction) and view.coefficient < 0


def logarithm(pool: TermPool, view: View) -> View:
    """``log(view)``; split over the factors where all are known to be positive."""
    factors = positive_factors(view)
    if factors is None or (len(factors) == 1 and factors[0].term.operation not in (EXPONENTIAL, POWER)):
        return elementwise(pool, LOGARITHM, (), (view,))
    return combine(pool, [_logarithm_of_factor(pool, f) for f in factors])


def _logarithm_of_factor(pool: TermPool, factor: View) -> View:
    if factor.term.operation is EXPONENTIAL:
        return open_view(factor).operands[0]
    if factor.term.operation is POWER:
        (base,) = open_view(factor).operands
        (exponent,) = factor.term.attributes
        return logarithm(pool, base).scaled(exponent)  # pyright: ignore[reportArgumentType] - a scalar by construction
    return elementwise(pool, LOGARITHM, (), (factor,))


def positive_factors(view: View) -> list[View] | None:
    """The factors of a product of positive values, or None where one is not known to be positive."""
    if view.coefficient != 1:
        return None
    if view.term.operation is CONTRACT and not view.term.summed:
        factors = list(open_view(view).operands)
    else:
        factors = [view]
    return factors if all(is_positive(f) for f in factors) else None


def is_positive(view: View) -> bool:
    """Whether every element is greater than zero by construction: exponentials, their powers, sums of products."""
    if view.coefficient != 1:
        return False
    term = view.term
    if term.operation in (CONTRACT, POWER):
        return all(is_positive(v) for v in term.operands)
    return term.operation is EXPONENTIAL
