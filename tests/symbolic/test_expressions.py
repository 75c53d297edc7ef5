"""Expressions: what is stored once, what z3 proves, and what differs at a point."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from verifycompile.symbolic.decide import Answer, Decider
from verifycompile.symbolic.expressions import ONE, ZERO, Expressions, rational

Build = Callable[[Expressions, int, int, int], tuple[int, int]]

SAME: dict[str, Build] = {
    "sums are associative": lambda p, a, b, c: (p.add(a, p.add(b, c)), p.add(p.add(c, a), b)),
    "what cancels is gone": lambda p, a, b, c: (p.subtract(p.add(a, b), a), p.add(b, p.multiply(c, ZERO))),
    "products are commutative": lambda p, a, b, c: (p.multiply(a, p.multiply(b, c)), p.multiply(p.multiply(c, b), a)),
    "a factor of a sum leaves a product": lambda p, a, b, c: (
        p.multiply(p.multiply(p.add(a, b), p.number(2)), c),
        p.multiply(p.number(2), p.multiply(c, p.add(b, a))),
    ),
    "signs of sums": lambda p, a, b, c: (p.multiply(p.subtract(a, b), c), p.negative(p.multiply(p.subtract(b, a), c))),
    "a quotient by itself": lambda p, a, b, c: (p.divide(p.multiply(a, b), a), p.add(b, p.subtract(c, c))),
    "roots": lambda p, a, b, c: (
        p.power(p.power(a, Fraction(-1, 2)), Fraction(2)),
        p.divide(ONE, p.add(a, p.multiply(ZERO, p.add(b, c)))),
    ),
    "exponentials": lambda p, a, b, c: (
        p.multiply(p.exp(p.subtract(a, b)), p.exp(p.subtract(b, c))),
        p.exp(p.subtract(a, c)),
    ),
    "the maximum of maxima": lambda p, a, b, c: (p.largest((a, p.largest((b, c)))), p.largest((p.largest((c, a)), b))),
    "a mask of minus infinity": lambda p, a, b, c: (
        p.add(p.exp(p.add(a, p.minus_infinity)), p.largest((b, p.minus_infinity))),
        p.add(b, p.subtract(c, c)),
    ),
}
PROVED: dict[str, Build] = {
    "distribution": lambda p, a, b, c: (
        p.multiply(p.add(a, b), c),
        p.add(p.multiply(a, c), p.multiply(b, c)),
    ),
    "a square": lambda p, a, b, _: (
        p.power(p.subtract(a, b), Fraction(2)),
        p.combination(((p.power(a, 2), 1), (p.multiply(a, b), -2), (p.power(b, 2), 1))),
    ),
    "within a function": lambda p, a, b, c: (
        p.call("max", p.multiply(p.add(a, b), c), a),
        p.call("max", p.add(p.multiply(c, b), p.multiply(a, c)), a),
    ),
    "within two functions": lambda p, a, b, c: (
        p.exp(p.log(p.multiply(p.add(p.exp(a), p.exp(b)), p.exp(c)))),
        p.exp(p.log(p.add(p.exp(p.add(a, c)), p.exp(p.add(c, b))))),
    ),
}
DIFFERENT: dict[str, Build] = {
    "another sum": lambda p, a, b, c: (p.add(a, b), p.add(a, c)),
    "another factor": lambda p, a, b, _: (p.add(a, b), p.add(a, p.multiply(b, p.number(2)))),
    "a forgotten root": lambda p, a, b, _: (p.multiply(p.exp(a), b), p.multiply(p.power(p.exp(a), Fraction(1, 2)), b)),
    "the mean of maxima": lambda p, a, b, c: (
        p.largest((a, b, c)),
        p.multiply(p.number(Fraction(1, 2)), p.add(p.largest((a, b)), p.largest((b, c)))),
    ),
}


def answer(build: Build) -> Answer:
    pool = Expressions()
    return Decider(pool).compare(*build(pool, *(pool.variable("x", number) for number in range(3))))


@pytest.mark.parametrize("name", SAME)
def test_the_same_expression(name: str) -> None:
    assert answer(SAME[name]) is Answer.SAME


@pytest.mark.parametrize("name", PROVED)
def test_proved_equal(name: str) -> None:
    assert answer(PROVED[name]) is Answer.PROVED


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    assert answer(DIFFERENT[name]) is Answer.DIFFERENT


def test_what_is_not_known_is_open() -> None:
    pool = Expressions()
    x = pool.variable("x", 0)
    double = pool.call("double")
    pool.functions["double"] = lambda: 2.0  # equal in value to a number of which it is not known
    assert Decider(pool).compare(pool.multiply(x, double), pool.multiply(x, pool.number(2))) is Answer.OPEN


def test_values_agree_with_python() -> None:
    pool = Expressions()
    a, b = pool.variable("x", 0), pool.variable("x", 1)
    decider = Decider(pool)
    for value, first, second in zip(
        decider.values(pool.divide(pool.exp(a), pool.add(pool.power(b, 2), ONE))),
        decider.values(a),
        decider.values(b),
        strict=True,
    ):
        assert math.isclose(value, math.exp(first) / (second**2 + 1))


@pytest.mark.parametrize(
    ("literal", "value"), [(0.1, Fraction(1, 10)), (1 / 3, Fraction(1, 3)), (2.0, 2), (1e-5, Fraction(1, 100_000))]
)
def test_literals(literal: float, value: Fraction) -> None:
    assert rational(literal) == value


def test_numbers_without_value() -> None:
    pool = Expressions()
    assert pool.literal(math.inf) == pool.plus_infinity
    assert pool.literal(math.nan) == pool.unknown
    assert pool.subtract(pool.plus_infinity, pool.plus_infinity) == pool.unknown
    assert pool.multiply(pool.minus_infinity, pool.number(-2)) == pool.plus_infinity
    assert pool.multiply(pool.minus_infinity, ZERO) == pool.unknown
