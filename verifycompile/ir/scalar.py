"""Scalar coefficients: exact rationals, or sympy expressions of symbolic sizes.

A float literal stands for the simplest rational that rounds to it (0.1 is 1/10), because the proof is over
the reals and a program that writes ``x / 10`` and one that writes ``x * 0.1`` mean the same real function. For the same
reason the rounding of a computed constant is taken off.
"""

from __future__ import annotations

import functools
import math
import struct
from fractions import Fraction

import sympy

Scalar = Fraction | sympy.Expr

ONE = Fraction(1)
ZERO = Fraction(0)

# Largest denominator tried when a float literal is read as a simple rational.
_SIMPLE_DENOMINATOR = 10_000
# What two roundings to double precision may change, relative to the number.
_ROUNDING = Fraction(1, 2**50)

# A constant that the program computed, such as `1 - 0.1 * V / (V - 1)`, is off by its own rounding. The rational
# that it stands for has a larger denominator, and lies within some units in the last place.
_COMPUTED_DENOMINATOR = 1_000_000
_COMPUTED_UNITS = 4

# Decimal digits that a constant in single precision may have. Few: its 24 bits do not stand for an arbitrary number.
_SINGLE_DIGITS = 4


class NonFiniteScalarError(ValueError):
    """An infinity or NaN has no place in real arithmetic."""


def as_scalar(value: float | Fraction | sympy.Expr) -> Scalar:
    """Read a Python or sympy number exactly. Raises NonFiniteScalarError for infinities and NaN."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        return _from_float(value)
    return _simplify(value)


@functools.lru_cache(maxsize=4096)
def _from_float(value: float) -> Fraction:
    if not math.isfinite(value):
        raise NonFiniteScalarError(f"{value} is not a real number")
    exact = Fraction(value)
    simple = exact.limit_denominator(_SIMPLE_DENOMINATOR)
    if float(simple) == value:
        return simple
    single = _from_single(value)
    if single is not None:
        return single
    computed = exact.limit_denominator(_COMPUTED_DENOMINATOR)
    return computed if abs(computed - exact) <= _COMPUTED_UNITS * Fraction(math.ulp(value)) else exact


def _from_single(value: float) -> Fraction | None:
    """The short decimal that ``value`` is in single precision: torch passes an epsilon of a norm on in that form."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return None
    decimal = Fraction(f"{value:.{_SINGLE_DIGITS}g}")
    (rounded,) = struct.unpack("f", struct.pack("f", float(decimal)))
    return decimal if single == value == rounded else None


def _simplify(expression: sympy.Expr) -> Scalar:
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))  # pyright: ignore[reportAttributeAccessIssue]
    if expression.is_Float:
        return _from_float(float(expression))
    return sympy.cancel(expression)


def to_sympy(value: Scalar) -> sympy.Expr:
    if isinstance(value, Fraction):
        return sympy.Rational(value.numerator, value.denominator)
    return value


def _nearby(result: Fraction, left: Fraction, right: Fraction) -> Fraction:
    """The simple number next to a result of two rounded numbers: ``sqrt(2) * sqrt(2)`` is 2 in every order.

    Numbers whose fractions are long are roots and the like, which a program can only write rounded.
    """
    if left.denominator <= _SIMPLE_DENOMINATOR or right.denominator <= _SIMPLE_DENOMINATOR or result == 0:
        return result
    # As a number between 1/2 and 2, so that sizes, which are often powers of two, do not count.
    shift = result.numerator.bit_length() - result.denominator.bit_length()
    mantissa = result / Fraction(2) ** shift
    simple = mantissa.limit_denominator(_SIMPLE_DENOMINATOR)
    return simple * Fraction(2) ** shift if abs(simple - mantissa) <= _ROUNDING else result


def multiply(left: Scalar, right: Scalar) -> Scalar:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _nearby(left * right, left, right)
    return _simplify(to_sympy(left) * to_sympy(right))


def divide(left: Scalar, right: Scalar) -> Scalar:
    """Quotient. Raises ZeroDivisionError for a zero divisor."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _nearby(left / right, left, right)
    if right == 0:
        raise ZeroDivisionError("division by a zero coefficient")
    return _simplify(to_sympy(left) / to_sympy(right))


def add(left: Scalar, right: Scalar) -> Scalar:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    return _simplify(to_sympy(left) + to_sympy(right))


def show(value: Scalar) -> str:
    """Text for people: exact where short, rounded where the exact rational is long."""
    text = str(value)
    if isinstance(value, Fraction) and len(text) > 12:
        return f"{float(value):.6g}"
    return text
