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
# Largest numerator and denominator of a number whose root is recognized.
_LARGEST_ROOT = 1 << 24
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
    return computed if abs(computed - exact) <= _COMPUTED_UNITS * Fraction(math.ulp(value)) else _as_root(exact)


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


def _is_short(value: Fraction) -> bool:
    return value.denominator <= _SIMPLE_DENOMINATOR


def _simple_neighbour(value: Fraction) -> Fraction | None:
    """The simple number, times a power of two, that rounding may have turned into ``value``."""
    if value == 0:
        return None
    # As a number between 1/2 and 2, so that sizes, which are often powers of two, do not count.
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    mantissa = value / Fraction(2) ** shift
    simple = mantissa.limit_denominator(_SIMPLE_DENOMINATOR)
    return simple * Fraction(2) ** shift if abs(simple - mantissa) <= _ROUNDING else None


@functools.lru_cache(maxsize=4096)
def _as_root(value: Fraction) -> Fraction:
    """One number for all that are written for the root of a simple number: ``sqrt(6)``, ``6 / sqrt(6)``, their floats.

    A program can only write roots rounded. They stand for a rational multiple of the root of a square-free number,
    of which all have the same, very precise fraction.
    """
    # As a number between 1/2 and 2, so that sizes, which are often powers of two, do not count.
    scale = Fraction(2) ** (value.numerator.bit_length() - value.denominator.bit_length())
    square = _simple_neighbour((value / scale) ** 2)
    if square is None or max(square.numerator, square.denominator) > _LARGEST_ROOT:
        return value
    outside, inside = 1, square.numerator * square.denominator
    factor = 2
    while factor * factor <= inside:
        while inside % (factor * factor) == 0:
            outside, inside = outside * factor, inside // (factor * factor)
        factor += 1
    if inside == 1:
        return value
    root = Fraction(math.isqrt(inside << 400), 1 << 200)
    return (1 if value > 0 else -1) * scale * root * Fraction(outside, square.denominator)


def _rounded(result: Fraction, left: Fraction, right: Fraction) -> Fraction:
    """A product or quotient of two numbers of which roots may be part: ``sqrt(2) * sqrt(2)`` is 2 in every order."""
    if _is_short(result) or _is_short(right):
        return result
    if _is_short(left):
        return _as_root(result)
    simple = _simple_neighbour(result)
    return _as_root(result) if simple is None else simple


def multiply(left: Scalar, right: Scalar) -> Scalar:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _rounded(left * right, left, right)
    return _simplify(to_sympy(left) * to_sympy(right))


def divide(left: Scalar, right: Scalar) -> Scalar:
    """Quotient. Raises ZeroDivisionError for a zero divisor."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _rounded(left / right, left, right)
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
