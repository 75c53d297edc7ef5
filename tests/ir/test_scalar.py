from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import sympy

from verifycompile.ir.scalar import NonFiniteScalarError, add, as_scalar, divide, multiply, show, to_sympy

s = sympy.Symbol("s", positive=True, integer=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1, Fraction(1, 10)), (0.5, Fraction(1, 2)), (1 / 3, Fraction(1, 3)), (3, Fraction(3)), (-2.5, Fraction(-5, 2))],
)
def test_a_literal_is_the_simple_number_that_it_stands_for(value: float, expected: Fraction) -> None:
    assert as_scalar(value) == expected


def test_reading_floats_loses_no_more_than_rounding() -> None:
    draw = random.Random(0)
    values = [draw.uniform(-10, 10) for _ in range(500)] + [n / d for n in range(1, 30) for d in range(1, 30)]
    for value in values:
        assert abs(float(as_scalar(value)) - value) <= 4 * math.ulp(value)  # type: ignore[arg-type]


def test_floats_that_differ_by_more_than_rounding_are_different_numbers() -> None:
    draw = random.Random(1)
    for _ in range(500):
        value = draw.choice([0.1, 1 / 3, 0.7, 1e-5, draw.random()])
        assert as_scalar(value) != as_scalar(value + 16 * math.ulp(value))


def test_a_constant_in_single_precision_is_the_decimal_that_was_written() -> None:
    assert as_scalar(9.999999747378752e-06) == Fraction(1, 100_000)
    assert as_scalar(9.999999974752427e-07) == Fraction(1, 1_000_000)
    assert as_scalar(9.99999e-06) != Fraction(1, 100_000)


@pytest.mark.parametrize("size", [8, 50_257, 128_256, 256_000])
def test_rounding_of_a_computed_constant_is_taken_off(size: int) -> None:
    share = 0.1 * size / (size - 1)
    assert as_scalar(share) == Fraction(size, 10 * (size - 1))
    assert add(as_scalar(share), as_scalar(1 - share)) == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinities_are_no_real_numbers(value: float) -> None:
    with pytest.raises(NonFiniteScalarError):
        as_scalar(value)


@pytest.mark.parametrize("number", [2, 3, 8, 128, 0.3])
def test_a_rounded_root_times_itself_is_the_number(number: float) -> None:
    root = as_scalar(math.sqrt(number))
    inverse = divide(Fraction(1), root)
    assert multiply(root, root) == as_scalar(number)
    assert multiply(inverse, inverse) == 1 / as_scalar(number)  # type: ignore[operator]
    assert multiply(multiply(root, Fraction(1, 65536)), root) == multiply(multiply(root, root), Fraction(1, 65536))
    assert divide(root, as_scalar(math.nextafter(math.sqrt(number), 100))) == 1
    assert inverse == as_scalar(1 / math.sqrt(number)) == as_scalar(number**-0.5)
    assert multiply(inverse, as_scalar(number)) == root
    assert multiply(root, as_scalar(math.sqrt(5))) == as_scalar(math.sqrt(5 * number))
    assert float(root) == math.sqrt(number)  # type: ignore[arg-type]
    assert multiply(root, as_scalar(math.sqrt(number) * (1 + 1e-12))) != as_scalar(number)


def test_arithmetic_with_sizes() -> None:
    half = divide(Fraction(1), as_scalar(2 * s))
    assert multiply(half, as_scalar(s)) == Fraction(1, 2)
    assert isinstance(multiply(half, as_scalar(s)), Fraction)
    assert add(as_scalar(s), as_scalar(-s)) == 0
    assert to_sympy(Fraction(2, 3)) == sympy.Rational(2, 3)


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        divide(Fraction(1), Fraction(0))
    with pytest.raises(ZeroDivisionError):
        divide(as_scalar(s), Fraction(0))


def test_text() -> None:
    assert show(Fraction(1, 3)) == "1/3"
    assert show(as_scalar(0.123456789012345)) == "0.123457"


@pytest.mark.parametrize("number", [12, 24, 192])
def test_the_root_of_a_root_times_itself_is_the_root(number: int) -> None:
    """As torch scales query and key each by the root of ``1 / sqrt(d)``."""
    factor, root = as_scalar((1 / math.sqrt(number)) ** 0.5), as_scalar(1 / math.sqrt(number))
    for size in (Fraction(1, 2048), Fraction(1, 3 << 20), Fraction(1 << 30)):
        assert (
            multiply(multiply(factor, size), factor) == multiply(multiply(factor, factor), size) == multiply(root, size)
        )
    assert multiply(factor, as_scalar((1 / math.sqrt(number)) ** 0.5 * (1 + 1e-12))) != root
