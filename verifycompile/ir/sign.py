"""Signs that are known by construction: squares, absolute values, and what is made of them."""

from __future__ import annotations

from fractions import Fraction

import sympy

from verifycompile.ir.algebra import COMBINE, CONTRACT, has_infinity
from verifycompile.ir.exponential import POWER, is_positive, is_positive_number
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.scalar import Scalar
from verifycompile.ir.term import UNIT, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty


def is_nonnegative(view: View) -> bool:
    """Whether no element is negative, for all values of the inputs."""
    return _is_nonnegative_number(view.coefficient) and _NONNEGATIVE(view.term)


def is_positive_sum(view: View) -> bool:
    """Whether the view is a sum that is greater than zero: a positive number, for one, and what is not negative."""
    if view.term.operation is not COMBINE or view.is_zero or not is_nonnegative(view):
        return False
    return any(
        not operand.is_zero and (operand.term.operation is UNIT or is_positive(operand.unscaled()))
        for operand in view.term.operands
    )


def is_greater_than_zero(view: View) -> bool:
    """Whether every element is, as a product or as a sum."""
    return is_positive(view) or is_positive_sum(view)


def known_equal(pool: TermPool, left: View, right: View) -> bool | None:
    """``left == right`` where signs tell: what is greater than zero is none of the numbers up to zero."""
    for value, number in ((left, right), (right, left)):
        bound = _number(pool, number)
        if bound is None or has_infinity(value):
            continue
        if (bound < 0 and is_nonnegative(value)) or (bound == 0 and _is_positive(value)):
            return False
    return None


def known_order(pool: TermPool, left: View, right: View, *, strict: bool) -> bool | None:
    """``left < right`` (``strict``) or ``left <= right`` between a value and a number, where signs tell."""
    if (bound := _number(pool, right)) is not None and not has_infinity(left):
        below = bound < 0 or (bound == 0 and (strict or _is_positive(left)))
        return False if below and is_nonnegative(left) else None
    if (bound := _number(pool, left)) is not None and not has_infinity(right):
        above = bound < 0 or (bound == 0 and (not strict or _is_positive(right)))
        return True if above and is_nonnegative(right) else None
    return None


def _number(pool: TermPool, view: View) -> Fraction | None:
    return view.coefficient if view.term is pool.unit and isinstance(view.coefficient, Fraction) else None


def _is_positive(view: View) -> bool:
    return is_positive_number(view.coefficient) and (is_positive(view.unscaled()) or is_positive_sum(view))


def _is_nonnegative_number(value: Scalar) -> bool:
    if isinstance(value, sympy.Expr):
        return value.is_nonnegative is True
    return value >= 0


def _is_nonnegative_term(term: Term) -> bool:
    operation = term.operation
    if operation.indicator or operation.nonnegative:
        return True
    if operation is CONTRACT:
        # A sum of products in which every factor that may be negative occurs an even number of times.
        odd: set[tuple[int, object]] = set()
        for factor in term.operands:
            if not is_nonnegative(factor.unscaled()):
                odd ^= {(factor.term.id, factor.axes)}
        return not odd
    if operation in (COMBINE, CONCATENATE, STACK) or operation.extreme:
        return all(is_nonnegative(operand) for operand in term.operands)
    if operation is POWER:
        (exponent,) = term.attributes
        even = exponent % 2 == 0  # type: ignore[operator]  # a number
        # A root is no negative number where it is a number at all.
        return even or getattr(exponent, "denominator", 0) == 2 or is_nonnegative(term.operands[0])
    return False


_NONNEGATIVE = TermProperty(lambda _: True, _is_nonnegative_term)
