"""Scalar coefficients: exact rationals, or sympy expressions of symbolic sizes.

A float literal stands for a simple number that rounds to it (0.1 is 1/10, 0.7071067811865476 the root of 1/2), because
the proof is over the reals and a program that writes ``x / 10`` and one that writes ``x * 0.1`` mean the same real
function. Each number rounds to one float, so literals that differ stay different: a constant that a program computes in
two ways is two constants where its own rounding led to neighbours of each other in the precision of the call. One
exception is ``1 / math.sqrt(n)``, which is rounded twice and written everywhere: it is the root, and reports list it.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import sympy

Scalar = Fraction | sympy.Expr

ONE = Fraction(1)
ZERO = Fraction(0)

# Largest denominator tried when a float literal is read as a simple rational.
_SIMPLE_DENOMINATOR = 10_000
# Largest numerator and denominator of a number whose root is recognized.
_LARGEST_ROOT = 1 << 24
# What two roundings to double precision may change, relative to the number.
_ROUNDING = Fraction(1, 2**51)
# Roots are held with so many bits, and computing with them leaves at least so many.
_ROOT_BITS = 200
_ROOT_ROUNDING = Fraction(1, 2**190)

# Precise enough that computing with them rounds as computing with the logarithms of 2 and 10 does.
LOGARITHM_OF_TWO = Fraction("0.693147180559945309417232121458176568075500134360255254120680")
LOGARITHM_OF_TEN = Fraction("2.30258509299404568401799145468436420760110148862877297603333")

# A constant that the program computed, such as `1 - 0.1 * V / (V - 1)`, is off by its own rounding. The rational
# that it stands for has a larger denominator, and lies within some units in the last place.
_COMPUTED_DENOMINATOR = 1_000_000
_COMPUTED_UNITS = 4

# Decimal digits that tell all numbers in single precision apart.
_SINGLE_DIGITS = 9


class NonFiniteScalarError(ValueError):
    """An infinity or NaN has no place in real arithmetic."""


def as_scalar(value: float | Fraction | sympy.Expr) -> Scalar:
    """Read a Python or sympy number; floats that differ are different. Raises NonFiniteScalarError."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, float):
        return _as_written(value)
    return _simplify(value)


@functools.lru_cache(maxsize=4096)
def read(value: float, single: bool) -> Fraction:
    """The number that a literal stands for where torch computes in single, or else in double precision.

    Torch holds it as the same float as the literal. Raises NonFiniteScalarError for infinities, NaN, and what is
    infinite in single precision.
    """
    held = _held(value, single)
    if not math.isfinite(held):
        raise NonFiniteScalarError(f"{value} is not a real number")
    if value == 0:
        return ZERO
    candidates = list(_simple_numbers(value))
    exact = (number for number in candidates if float(number) == value)
    same = (number for number in candidates if _held(float(number), single) == held)
    found = next(exact, None) or next(same, None) or _inverse_of_a_root(value)
    if found is not None:
        return found
    return _shortest_decimal(held) if single else Fraction(repr(value))


def _held(value: float, single: bool) -> float:
    """What torch computes with where a program writes ``value``."""
    if not single:
        return value
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _inverse_of_a_root(value: float) -> Fraction | None:
    """The inverse root of a whole number, where ``value`` is what ``1 / math.sqrt(number)`` gives."""
    exact = Fraction(value)
    number = round(1 / exact**2)
    if number not in range(1, _LARGEST_ROOT) or 1 / math.sqrt(number) != abs(value):
        return None
    return inverse_root(number) * _sign(exact)


def inverse_root(number: int) -> Fraction:
    """``1 / sqrt(number)`` as all ways of writing it are read."""
    return _precise_root(Fraction(1, number), 2)


def difference(value: float, number: Fraction, single: bool) -> float:
    """By how much ``number`` is off what torch computes with where a program writes ``value``, relative to it."""
    held = Fraction(_held(value, single))
    return float(abs((number - held) / held)) if held else float(abs(number))


@functools.lru_cache(maxsize=4096)
def _as_written(value: float) -> Fraction:
    if not math.isfinite(value):
        raise NonFiniteScalarError(f"{value} is not a real number")
    exact = (number for number in _simple_numbers(value) if float(number) == value)
    return next(exact, Fraction(repr(value)))


def _simple_numbers(value: float) -> Iterator[Fraction]:
    """Simple numbers that ``value`` is, but for the rounding of the computation that gave it."""
    exact = Fraction(value)
    simple = exact.limit_denominator(_SIMPLE_DENOMINATOR)
    if float(simple) == value:
        yield simple
    computed = exact.limit_denominator(_COMPUTED_DENOMINATOR)
    if abs(computed - exact) <= _COMPUTED_UNITS * Fraction(math.ulp(value)):
        yield computed
    root = _root_near(exact, _ROUNDING)
    if root is not None:
        yield root
    for logarithm in (LOGARITHM_OF_TWO, 1 / LOGARITHM_OF_TWO, LOGARITHM_OF_TEN, 1 / LOGARITHM_OF_TEN):
        factor = _root_near(exact / logarithm, _ROUNDING)
        if factor is not None:
            yield factor * logarithm


def _shortest_decimal(single: float) -> Fraction:
    """The shortest decimal that is ``single`` in single precision: torch passes an epsilon of a norm on in that form.

    Two numbers in single precision have two decimals.
    """
    decimals = (f"{single:.{digits}g}" for digits in range(1, _SINGLE_DIGITS + 1))
    return next(Fraction(text) for text in decimals if _held(float(text), True) == single)


def _simplify(expression: Any) -> Scalar:
    if expression.is_Rational:
        return Fraction(int(expression.p), int(expression.q))  # pyright: ignore[reportAttributeAccessIssue]  # a rational number of sympy
    if expression.is_Float:
        return _as_written(float(expression))
    return sympy.cancel(expression)


def _simple_neighbour(value: Fraction, tolerance: Fraction) -> Fraction | None:
    """The simple number, times a power of two, that rounding may have turned into ``value``."""
    # As a number between 1/2 and 2, so that sizes, which are often powers of two, do not count.
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    mantissa = value / Fraction(2) ** shift
    simple = mantissa.limit_denominator(_SIMPLE_DENOMINATOR)
    return simple * Fraction(2) ** shift if abs(simple - mantissa) <= tolerance else None


@functools.lru_cache(maxsize=4096)
def _root_near(value: Fraction, tolerance: Fraction) -> Fraction | None:
    """One number for all that are written for a root of a simple number: ``sqrt(6)``, ``6 / sqrt(6)``, their floats.

    A program can only write roots rounded. They stand for a rational multiple of the second or fourth root of a whole
    number without such powers, of which all have the same, very precise fraction.
    """
    # As a number between 1/2 and 2, so that sizes, which are often powers of two, do not count.
    scale = Fraction(2) ** (value.numerator.bit_length() - value.denominator.bit_length())
    for order in (2, 4):
        power = _simple_neighbour((value / scale) ** order, order * tolerance)
        if power is not None:
            return _precise_root(power, order) * scale * _sign(value)
    return None


def _sign(value: Fraction) -> Fraction:
    return value / abs(value)


def _precise_root(power: Fraction, order: int) -> Fraction:
    """A root of a number, as a rational times the root of a whole number."""
    outside, inside = ONE, 1
    for number, sign in ((power.numerator, 1), (power.denominator, -1)):
        for base, count in sympy.factorint(number).items():
            outside *= Fraction(base) ** (sign * count // order)
            inside *= base ** (sign * count % order)
    root = inside << (order * _ROOT_BITS)
    for _ in range(order // 2):
        root = math.isqrt(root)
    return outside * Fraction(root, 1 << _ROOT_BITS)


def _as_root(value: Fraction) -> Fraction:
    root = _root_near(value, _ROOT_ROUNDING)
    return value if root is None else root


def _rounded(result: Fraction, right: Fraction) -> Fraction:
    """A product or quotient of two numbers of which roots may be part: ``sqrt(2) * sqrt(2)`` is 2 in every order.

    Roots alone are rounded, in bits that no float has: what is computed of other numbers is exact.
    """
    if min(result.denominator, right.denominator) <= _SIMPLE_DENOMINATOR:  # most are, and are what rounding gives
        return result
    simple = _simple_neighbour(result, _ROOT_ROUNDING)
    return _as_root(result) if simple is None else simple


def multiply(left: Scalar, right: Scalar) -> Scalar:
    if left is ONE:  # as nearly all coefficients are
        return right
    if right is ONE:
        return left
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _rounded(left * right, right)
    return _simplify(sympy.sympify(left * right))


def divide(left: Scalar, right: Scalar) -> Scalar:
    """Quotient. Raises ZeroDivisionError for a zero divisor."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return _rounded(left / right, right)
    if right == 0:
        raise ZeroDivisionError("division by a zero coefficient")
    return _simplify(sympy.sympify(left / right))


def add(left: Scalar, right: Scalar) -> Scalar:
    total = left + right
    return total if isinstance(total, Fraction) else _simplify(sympy.sympify(total))
