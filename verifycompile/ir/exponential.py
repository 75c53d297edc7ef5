"""Exponentials and logarithms: ``exp`` turns sums into products, ``log`` products of positive factors into sums.

With these, the shift by a maximum that every stable softmax carries cancels: ``exp(x - c)`` is
``exp(x) * exp(-c)``, the factor leaves the sum, and ``log(exp(-c) * s)`` is ``-c + log(s)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeGuard

from verifycompile.ir.algebra import (
    COMBINE,
    CONTRACT,
    EXPONENTIAL,
    INFINITY,
    WHERE,
    combine,
    elementwise,
    multiply_views,
    open_view,
)
from verifycompile.ir.indicator import EQUAL, NOT, is_indicator, negate
from verifycompile.ir.inequality import are_attained, is_attained
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.scalar import ONE, Scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.ir.window import RANGE, WINDOW

LOGARITHM = Operation("log")
POWER = Operation("power")
MAXIMUM = Operation("maximum", commutative=True, extreme=True)
REDUCE_MAX, REDUCE_MIN = Operation("reduce_max", extreme=True), Operation("reduce_min", extreme=True)


def exponential(pool: TermPool, view: View, power: Callable[[View, Scalar], View]) -> View:
    """``exp(view)``; ``exp(c * log(t))`` is ``t ** c``, for which ``power`` is called."""
    if view.is_zero:
        return pool.constant(ONE, view.shape)
    moved = _moved(pool, lambda pool, part: exponential(pool, part, power), view)
    if moved is not None:
        return moved
    masked = _exponential_of_mask(pool, view, power)
    if masked is not None:
        return masked
    if view.term.operation is COMBINE:
        summands = [v.scaled(view.coefficient) for v in open_view(view).operands]
        if not _is_number(pool, summands):
            return elementwise(pool, EXPONENTIAL, (), (view,))
        return multiply_views(pool, *(exponential(pool, v, power) for v in summands))
    if view.term.operation is LOGARITHM:
        (base,) = open_view(view).operands
        is_number = base.term is pool.unit and is_positive_number(base.coefficient)
        if is_number or is_positive(base) or _is_masked_sum(base):
            return power(base, view.coefficient)
    return elementwise(pool, EXPONENTIAL, (), (view,))


def _is_number(pool: TermPool, summands: list[View]) -> bool:
    """Whether no maximum of masked values in the sum is minus infinity, which taken from itself is no number.

    ``x - max(x)`` may be taken apart all the same: where all of a row is masked, its softmax is no number either.
    """
    lowest = [v for v in summands if not _keeps_masks(v) and may_be_lowest(v)]
    if not lowest:
        return True
    rest = [v for v in summands if v is not lowest[0]]
    if lowest[0].term.operation is not REDUCE_MAX or not _is_negative(lowest[0].coefficient):
        return False
    (operand,) = lowest[0].term.operands
    return combine(pool, rest).term is operand.term


def _keeps_masks(view: View) -> bool:
    """Whether an element is minus infinity by a mask that is still seen, so that its exponential is zero there."""
    return _KEEPS_MASKS(view.term)


def _keeps_masks_of(term: Term) -> bool:
    if term.operation.copies:
        return all(_keeps_masks(operand) for operand in term.operands)
    return term.operation in (WHERE, COMBINE, CONTRACT, INFINITY)


_KEEPS_MASKS = TermProperty(lambda term: term.operation.copies, _keeps_masks_of)


def may_be_lowest(view: View) -> bool:
    """Whether an element may be minus infinity where the inputs are numbers, by a mask of the program."""
    return _LOWEST(view.term)


def _may_be_lowest(term: Term) -> bool:
    operation = term.operation
    if operation.is_finite:
        return False
    if operation is MAXIMUM:
        return all(may_be_lowest(operand) for operand in term.operands)
    if operation is LOGARITHM:
        return _is_masked_sum(term.operands[0]) and not is_positive(term.operands[0])
    if operation in (REDUCE_MAX, REDUCE_MIN):  # the smallest is the negated largest of the negated
        (operand,) = term.operands
        sign = ONE if operation is REDUCE_MAX else -ONE
        return may_be_lowest(operand) and not _is_seen(operand.scaled(sign), term.summed_indices)
    return not term.operands or any(may_be_lowest(operand) for operand in term.operands)


_LOWEST = TermProperty(lambda term: not term.operation.is_finite, _may_be_lowest)


def _is_seen(view: View, bound: range) -> bool:
    """Whether some index of those in ``bound`` is not masked, whatever the others are."""
    opened = open_view(view)
    if view.term.operation is WHERE:
        condition, *branches = opened.operands
        then, otherwise = (v.scaled(view.coefficient) for v in branches)
        if is_minus_infinity(otherwise) and not may_be_lowest(then):
            return _hold_somewhere(_factors(condition), bound)
        return is_minus_infinity(then) and not may_be_lowest(otherwise) and _fails_somewhere(condition, bound)
    if view.term.operation is not COMBINE:
        return False
    masked = [v.scaled(view.coefficient) for v in opened.operands if may_be_lowest(v)]
    return len(masked) == 1 and _is_negative(masked[0].coefficient) and _fails_somewhere(masked[0], bound)


def _hold_somewhere(masks: Sequence[View], bound: range) -> bool:
    """Whether some index of those in ``bound`` fulfils all masks, whatever the others are."""
    if all(mask.term.operation is not EQUAL for mask in masks):
        return are_attained(masks, bound)
    from verifycompile.ir.same_place import hold_at_same_place  # here, because few masks compare data

    return hold_at_same_place(masks, bound)


def _fails_somewhere(mask: View, bound: range) -> bool:
    if mask.term.operation is NOT:
        return _hold_somewhere(_factors(open_view(mask).operands[0]), bound)
    if len(factors := _factors(mask)) > 1:
        return any(_fails_somewhere(factor, bound) for factor in factors)
    return is_attained(mask, bound, opposite=True)


def _exponential_of_mask(pool: TermPool, view: View, power: Callable[[View, Scalar], View]) -> View | None:
    """``exp`` of minus infinity where a mask is one: zero there. None for other values."""
    term = view.term
    if term.operation is WHERE:
        condition, *branches = open_view(view).operands
        then, otherwise = (v.scaled(view.coefficient) for v in branches)
        if is_indicator(condition) and is_minus_infinity(then):
            return multiply_views(pool, negate(pool, condition), exponential(pool, otherwise, power))
        if is_indicator(condition) and is_minus_infinity(otherwise):
            return multiply_views(pool, condition, exponential(pool, then, power))
        return None
    if not _is_negative(view.coefficient):
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
    return view.term.operation is INFINITY and _is_negative(view.coefficient)


def _is_negative(number: Scalar) -> bool:
    return isinstance(number, Fraction) and number < 0


def logarithm(pool: TermPool, view: View) -> View:
    """``log(view)``; split over the factors where all but one are known to be positive."""
    moved = _moved(pool, logarithm, view)
    if moved is not None:
        return moved
    if is_positive_number(view.coefficient) and view.coefficient != 1:
        rest = [] if view.term is pool.unit else [logarithm(pool, view.unscaled())]
        return combine(pool, [*_logarithms_of_number(pool, view.coefficient, view.shape), *rest])
    factors = product_factors(pool, view)
    if factors is None or (len(factors) == 1 and factors[0].term.operation not in (EXPONENTIAL, POWER)):
        return elementwise(pool, LOGARITHM, (), (view,))
    return combine(pool, [_logarithm_of_factor(pool, f) for f in factors])


def _moved(pool: TermPool, function: Callable[[TermPool, View], View], view: View) -> View | None:
    return None if pool.piecewise is None else pool.piecewise.pointwise(pool, function, (view,))


def _logarithms_of_number(pool: TermPool, number: Fraction, shape: tuple[Size, ...]) -> list[View]:
    """``log(p / q)`` as ``log(p)`` and ``-log(q)``, which meet those of other numbers."""
    parts = [(Fraction(part), sign) for part, sign in ((number.numerator, ONE), (number.denominator, -ONE)) if part > 1]
    return [elementwise(pool, LOGARITHM, (), (pool.constant(part, shape),)).scaled(sign) for part, sign in parts]


def _logarithm_of_factor(pool: TermPool, factor: View) -> View:
    if factor.term.operation is EXPONENTIAL:
        return open_view(factor).operands[0]
    if factor.term.operation is POWER:
        from verifycompile.ir.sign import is_greater_than_zero  # here, because signs are those of powers as well

        (base,) = open_view(factor).operands
        (exponent,) = factor.term.attributes
        if is_greater_than_zero(base):
            return logarithm(pool, base).scaled(exponent)  # pyright: ignore[reportArgumentType] - a scalar by construction
    return elementwise(pool, LOGARITHM, (), (factor,))


def _factors(view: View) -> list[View]:
    """Those of a product; else the view itself."""
    is_product = view.term.operation is CONTRACT and not view.term.summed
    return list(open_view(view).operands) if is_product else [view]


def product_factors(pool: TermPool, view: View) -> list[View] | None:
    """The factors of a product, at most one of which is not known to be positive; None where more are not.

    ``(a b) ** p`` is ``a ** p * b ** p`` for a positive b, whatever a is. What the summands of a sum have in common is
    a factor, their denominators included.
    """
    if view.coefficient != 1:
        return None
    if view.term.operation is COMBINE:
        from verifycompile.ir.common_factors import common_factors  # here, because few programs divide sums of powers

        common = common_factors(pool, view)
        if common is not None:
            return common
    factors = _factors(view)
    positive = [f for f in factors if is_positive(f)]
    rest = [f for f in factors if not is_positive(f)]
    if len(rest) > 1 and positive:
        rest = [multiply_views(pool, *rest)]
    return [*rest, *positive] if len(rest) <= 1 else None


def is_positive(view: View) -> bool:
    """Whether every element is greater than zero by construction: exponentials, their powers, sums of products.

    A sum of products under an inequality is, if it takes some element everywhere: no row of a causal mask is empty.
    """
    return view.coefficient == 1 and _POSITIVE(view.term)


def _is_positive(term: Term) -> bool:
    if term.operation is EXPONENTIAL:
        return True
    if term.operation in (COMBINE, *_PARTS):
        return all(is_positive_number(v.coefficient) and is_positive(v.unscaled()) for v in term.operands)
    if term.operation not in (CONTRACT, POWER):
        return False
    masks = [v for v in term.operands if not is_positive(v)]
    if not masks:
        return True
    if len(masks) == 1 and masks[0].term.operation is RANGE:
        return _takes_some(masks[0], term.summed_indices)
    return _hold_somewhere(masks, term.summed_indices)


def _takes_some(within: View, bound: range) -> bool:
    """Whether a range of a summed index holds some position, whatever the other indices are."""
    ((axis,), (size,), (first, stop)) = within.axes, within.term.shape, within.term.attributes
    if not (isinstance(first, int) and isinstance(stop, int) and isinstance(size, int)):
        return False
    is_whole = axis[0][0] in bound and axis[0][2] == size
    return is_whole and max(first, 0) < min(stop, size)


_PARTS = (CONCATENATE, STACK, WINDOW)
_POSITIVE = TermProperty(lambda term: term.operation in (COMBINE, CONTRACT, POWER, *_PARTS), _is_positive)


def is_positive_number(value: Scalar) -> TypeGuard[Fraction]:
    return isinstance(value, Fraction) and value > 0
