"""Signs that are known by construction: squares, absolute values, and what is made of them."""

from __future__ import annotations

import sympy

from verifycompile.ir.algebra import COMBINE, CONTRACT
from verifycompile.ir.exponential import EXPONENTIAL, is_positive
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.scalar import Scalar
from verifycompile.ir.term import UNIT, View

_NONNEGATIVE = frozenset({"abs", "one", EXPONENTIAL.name})
_EXTREMES = frozenset({"maximum", "minimum", "reduce_max", "reduce_min"})


def is_nonnegative(view: View) -> bool:
    """Whether no element is negative, for all values of the inputs."""
    return view.is_zero or (_is_nonnegative_number(view.coefficient) and _is_nonnegative_term(view))


def is_positive_sum(view: View) -> bool:
    """Whether the view is a sum that is greater than zero: a positive number, for one, and what is not negative."""
    if view.term.operation is not COMBINE or view.is_zero or not is_nonnegative(view):
        return False
    return any(
        not operand.is_zero and (operand.term.operation is UNIT or is_positive(operand.unscaled()))
        for operand in view.term.operands
    )


def _is_nonnegative_number(value: Scalar) -> bool:
    if isinstance(value, sympy.Expr):
        return value.is_nonnegative is True
    return value >= 0


def _is_nonnegative_term(view: View) -> bool:
    term = view.term
    operation = term.operation
    if operation.indicator or operation.name in _NONNEGATIVE:
        return True
    if operation is CONTRACT:
        # A sum of products in which every factor that may be negative occurs an even number of times.
        odd: set[tuple[int, object]] = set()
        for factor in term.operands:
            if not is_nonnegative(factor.unscaled()):
                odd ^= {(factor.term.id, factor.axes)}
        return not odd
    if operation in (COMBINE, CONCATENATE, STACK) or operation.name in _EXTREMES:
        return all(is_nonnegative(operand) for operand in term.operands)
    if operation.name == "power":
        (exponent,) = term.attributes
        whole_and_even = getattr(exponent, "denominator", 0) == 1 and exponent % 2 == 0  # type: ignore[operator]
        # A root is no negative number where it is a number at all.
        return whole_and_even or getattr(exponent, "denominator", 0) == 2 or is_nonnegative(term.operands[0])
    return False
