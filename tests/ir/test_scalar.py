from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import sympy
import torch

from verifycompile.ir.scalar import (
    LOGARITHM_OF_TEN,
    LOGARITHM_OF_TWO,
    ONE,
    NonFiniteScalarError,
    add,
    as_scalar,
    difference,
    divide,
    inverse_root,
    multiply,
    read,
)

s = sympy.Symbol("s", positive=True, integer=True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.1, Fraction(1, 10)), (0.5, Fraction(1, 2)), (1 / 3, Fraction(1, 3)), (3, Fraction(3)), (-2.5, Fraction(-5, 2))],
)
def test_a_literal_is_the_simple_number_that_it_stands_for(value: float, expected: Fraction) -> None:
    assert as_scalar(value) == expected


def _floats(seed: int) -> list[float]:
    """Floats of all kinds: at random, with few digits, quotients, roots, products; and their neighbours."""
    draw = random.Random(seed)
    values = [draw.uniform(-10, 10) * 10.0 ** draw.randint(-12, 12) for _ in range(300)]
    values += [float(f"{value:.{draw.randint(1, 9)}g}") for value in values]
    values += [n / d for n in range(1, 20) for d in range(1, 20)] + [math.sqrt(n) for n in range(1, 40)]
    values += [(1 / math.sqrt(n)) ** 0.5 for n in range(1, 20)] + [0.1 * n / (n - 1) for n in range(2, 200)]
    return values + [math.nextafter(value, math.inf) for value in values]


def test_every_float_is_read_as_a_number_of_its_own() -> None:
    for value in _floats(0):
        assert float(as_scalar(value)) == value


def test_a_literal_in_double_precision_is_read_as_a_number_of_its_own() -> None:
    inverse_roots = {1 / math.sqrt(n) for n in range(1, 400)}
    for value in _floats(1):
        number = read(value, single=False)
        if value in inverse_roots:
            # It is rounded twice, and read as the root, which reports list.
            assert abs(difference(value, number, single=False)) <= 2**-52
            assert read(math.sqrt(float(number) ** 2), single=False) == number or float(number) == value
        else:
            assert float(number) == value


def test_a_literal_in_single_precision_is_a_number_that_torch_holds_as_the_same_float() -> None:
    for value in _floats(2):
        number = read(value, single=True)
        held = torch.tensor(value, dtype=torch.float32).item()
        assert torch.tensor(float(number), dtype=torch.float32).item() == held
        assert difference(value, number, single=True) <= 2**-24


def test_literals_that_are_one_number_in_single_precision() -> None:
    ours, theirs = 0.0499, 0.04989999905228615
    assert read(ours, single=True) == read(theirs, single=True) == Fraction(499, 10_000)
    assert read(ours, single=False) != read(theirs, single=False)
    assert read(0.7978845608, single=True) == read(math.sqrt(2 / math.pi), single=True)
    assert read(0.7978845608, single=False) != read(math.sqrt(2 / math.pi), single=False)


def test_a_neighbour_of_a_literal_is_not_that_literal() -> None:
    above = math.nextafter(0.1, 1)
    assert as_scalar(above) != as_scalar(0.1)
    assert read(above, single=False) != Fraction(1, 10)
    assert read(above, single=True) == Fraction(1, 10)


def test_products_of_long_numbers_are_exact() -> None:
    left, right = as_scalar(0.12345678912345678), as_scalar(0.98765432198765432)
    assert isinstance(left, Fraction)
    assert isinstance(right, Fraction)
    assert multiply(left, right) == left * right
    simple = as_scalar(1 / 0.12345678912345678)
    assert multiply(left, simple) != 1


def test_a_constant_in_single_precision_is_the_decimal_that_was_written() -> None:
    assert read(9.999999747378752e-06, single=True) == Fraction(1, 100_000)
    assert read(9.999999974752427e-07, single=True) == Fraction(1, 1_000_000)
    assert read(9.99999e-06, single=True) != Fraction(1, 100_000)
    assert read(9.999999747378752e-06, single=False) != Fraction(1, 100_000)


@pytest.mark.parametrize("size", [8, 50_257, 128_256, 256_000])
def test_rounding_of_a_computed_constant_is_taken_off(size: int) -> None:
    share = 0.1 * size / (size - 1)
    assert _read(share) == Fraction(size, 10 * (size - 1))
    assert _read(share) + _read(1 - share) == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinities_are_no_real_numbers(value: float) -> None:
    with pytest.raises(NonFiniteScalarError):
        as_scalar(value)
    with pytest.raises(NonFiniteScalarError):
        read(value, single=False)


def test_what_single_precision_cannot_hold_is_infinite_there() -> None:
    with pytest.raises(NonFiniteScalarError):
        read(1e39, single=True)
    assert float(read(1e39, single=False)) == 1e39


def _read(value: float) -> Fraction:
    return read(value, single=True)


@pytest.mark.parametrize("number", [2, 3, 8, 128, 0.3])
def test_a_rounded_root_times_itself_is_the_number(number: float) -> None:
    root = _read(math.sqrt(number))
    inverse = divide(Fraction(1), root)
    assert multiply(root, root) == as_scalar(number)
    assert multiply(inverse, inverse) == 1 / as_scalar(number)  # type: ignore[operator]
    assert multiply(multiply(root, Fraction(1, 65536)), root) == multiply(multiply(root, root), Fraction(1, 65536))
    assert divide(root, _read(math.nextafter(math.sqrt(number), 100))) == 1
    assert inverse == _read(1 / math.sqrt(number)) == _read(number**-0.5)
    assert multiply(inverse, as_scalar(number)) == root
    assert multiply(root, _read(math.sqrt(5))) == _read(math.sqrt(5 * number))
    assert float(root) == math.sqrt(number)
    assert multiply(root, _read(math.sqrt(number) * (1 + 1e-12))) != as_scalar(number)


def test_arithmetic_with_sizes() -> None:
    half = divide(Fraction(1), as_scalar(2 * s))
    assert multiply(half, as_scalar(s)) == Fraction(1, 2)
    assert isinstance(multiply(half, as_scalar(s)), Fraction)
    assert add(as_scalar(s), as_scalar(-s)) == 0
    assert multiply(Fraction(2, 3), s) == multiply(s, Fraction(2, 3)) == sympy.Rational(2, 3) * s
    assert add(1 / s, ONE) == add(ONE, 1 / s) == (s + 1) / s
    assert add(ONE / 2, ONE / 3) == as_scalar(Fraction(5, 6)) == Fraction(5, 6)
    assert isinstance(add(s, -s), Fraction)
    assert add(Fraction(1, 2), s) == add(s, Fraction(1, 2)) == s + sympy.Rational(1, 2)
    assert divide(Fraction(2), s) == 2 / s
    assert divide(s, Fraction(2)) == s / 2
    assert as_scalar(sympy.Float(0.1)) == Fraction(1, 10)


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        divide(Fraction(1), Fraction(0))
    with pytest.raises(ZeroDivisionError):
        divide(as_scalar(s), Fraction(0))


@pytest.mark.parametrize("number", [12, 24, 192])
def test_the_root_of_a_root_times_itself_is_the_root(number: int) -> None:
    """As torch scales query and key each by the root of ``1 / sqrt(d)``."""
    factor, root = _read((1 / math.sqrt(number)) ** 0.5), _read(1 / math.sqrt(number))
    for size in (Fraction(1, 2048), Fraction(1, 3 << 20), Fraction(1 << 30)):
        assert (
            multiply(multiply(factor, size), factor) == multiply(multiply(factor, factor), size) == multiply(root, size)
        )
    assert multiply(factor, _read((1 / math.sqrt(number)) ** 0.5 * (1 + 1e-12))) != root


@pytest.mark.parametrize("sign", [1, -1])
def test_inverse_roots_are_read_as_roots(sign: int) -> None:
    for number in range(2, 200):
        assert read(sign / math.sqrt(number), single=False) == sign * inverse_root(number)
    assert read(sign * math.pi, single=False) == sign * Fraction(repr(math.pi))


_NUMBERS = [
    -as_scalar(math.sqrt(2)), 3 * as_scalar(math.sqrt(2)), 2 * as_scalar(3**0.25), Fraction(513781826074, 6313),
    as_scalar(math.sqrt(1078)),
    *(
        factor * logarithm
        for logarithm in (LOGARITHM_OF_TWO, 1 / LOGARITHM_OF_TWO, LOGARITHM_OF_TEN, 1 / LOGARITHM_OF_TEN)
        for factor in (ONE, -ONE, Fraction(3), as_scalar(math.sqrt(2)))
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", _NUMBERS, ids=str)
@pytest.mark.parametrize("single", [True, False])
def test_roots_logarithms_and_simple_numbers_are_read_as_what_they_are(number: Fraction, single: bool) -> None:
    """Of numbers that are one in single precision, that which the literal is in double precision."""
    assert as_scalar(float(number)) == read(float(number), single) == number


def test_numbers_at_the_ends_of_what_rounding_may_change() -> None:
    assert read(0.0, single=True) == 0
    assert difference(1e-50, Fraction(1, 10**50), single=True) == 1e-50
    assert read(2**-19 + 4 * math.ulp(2**-19), single=True) == Fraction(1, 2**19)
    long = Fraction(1, 7**20)
    assert multiply((1 + Fraction(1, 2**190)) / long, long) == 1
    assert multiply((1 + Fraction(1, 2**189)) / long, long) != 1
