"""Logarithms of products and exponentials of masks as they are taken apart, as rows that mutants must fail."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import sympy

from tests.lemmas.conditions import Check
from verifycompile.ir.algebra import elementwise, multiply_views
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, MAXIMUM, POWER, WHERE, exponential, logarithm
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma

FUNCTIONS = (
    "_exponential_of_mask", "logarithm", "_logarithms_of_number", "_logarithm_of_factor", "product_factors", "_is_negative",
)  # fmt: skip
"""Of the module, what is checked here."""


class _Values:
    """Two rows of three numbers each: ``x`` and ``y`` of unknown sign, ``keep`` and ``other`` indicators."""

    def __init__(self) -> None:
        self.b = b = Builder(TermPool())
        b.pool.contraction_rules.append(product_lemma)
        self.x, self.y = (b.pool.leaf(name, (2, 3)) for name in "xy")
        self.keep, self.other = (b.pool.leaf(name, (2, 3), indicator=True) for name in ("keep", "other"))
        self.e, self.f = b.exp(self.x), b.exp(self.y)
        self.infinite = b.full(math.inf, (2, 3))

    def of(self, *factors: View) -> View:
        return multiply_views(self.b.pool, *factors)

    def log(self, value: View | int) -> View:
        """As it stands."""
        return elementwise(
            self.b.pool, LOGARITHM, (), (self.b.full(value, (2, 3)) if isinstance(value, int) else value,)
        )

    def exp(self, value: View) -> View:
        """As it stands."""
        return elementwise(self.b.pool, EXPONENTIAL, (), (value,))

    def power(self, value: View, exponent: Fraction) -> View:
        """As it stands."""
        return elementwise(self.b.pool, POWER, (exponent,), (value,))

    def where(self, *operands: View) -> View:
        return elementwise(self.b.pool, WHERE, (), operands)


def _logarithms(v: _Values) -> Iterator[tuple[View, View]]:
    b, x, y, e, f, log = v.b, v.x, v.y, v.e, v.f, v.log
    half, both = Fraction(1, 2), b.add(e, f)
    yield e, x
    yield v.of(e, f), b.add(x, y)
    yield v.of(x, e), b.add(log(x), x)
    yield v.of(x, y, e), b.add(log(v.of(x, y)), x)
    for single in (x, v.of(x, y), b.scale(e, -1), b.scale(x, -2), both, v.keep, e.scaled(sympy.Symbol("s"))):
        yield single, log(single)
    total = b.sum(v.of(e, f), [1])
    yield total, elementwise(b.pool, LOGARITHM, (), (total,))
    yield b.scale(e, 2), b.add(log(2), x)
    yield b.scale(x, Fraction(3, 4)), b.add(b.sub(log(3), log(4)), log(x))
    for number, expected in ((Fraction(2), log(2)), (half, b.scale(log(2), -1)), (Fraction(6, 5), b.sub(log(6), log(5)))):
        yield b.pool.constant(number, (2, 3)), expected
    squares = b.add(v.of(x, x), 1)
    shift = b.exp(b.scale(b.pool.leaf("z", (2, 3)), -1))
    yield b.add(v.of(shift, e), v.of(shift, f)), b.sub(log(both), b.pool.leaf("z", (2, 3)))
    for base in (both, squares, b.expand(b.sum(v.of(e, f), [1], True), (2, 3))):
        yield v.power(base, half), b.scale(logarithm(b.pool, base), half)
    for base in (x, v.keep, b.add(x, 1)):
        yield v.power(base, half), log(v.power(base, half))


def _exponentials(v: _Values) -> Iterator[tuple[View, View]]:
    b, x, y, keep, infinite = v.b, v.x, v.y, v.keep, v.infinite
    minus = b.scale(infinite, -1)
    yield v.where(keep, x, minus), v.of(keep, v.e)
    yield v.where(keep, minus, x), v.of(b.negate(keep), v.e)
    yield b.scale(v.where(keep, x, infinite), -2), v.of(keep, b.exp(b.scale(x, -2)))
    for value in (
        v.where(y, x, minus), v.where(y, minus, x), v.where(keep, x, y), v.where(keep, x, infinite),
        b.scale(v.where(keep, x, minus), -1), infinite, v.of(keep, infinite), b.scale(v.of(keep, v.other), -1),
        b.scale(v.of(keep, x, infinite), -1), b.scale(v.of(x, infinite), -1), b.scale(v.of(keep, x), -1),
        b.scale(b.sum(v.of(keep, v.infinite), [1]), -1), b.scale(x, -1), b.scale(keep, -1),
        b.scale(elementwise(b.pool, MAXIMUM, (), (keep, infinite)), -1), infinite.scaled(sympy.Symbol("s")),
    ):  # fmt: skip
        yield value, v.exp(value)
    yield minus, b.full(0, (2, 3))
    yield b.scale(v.of(keep, infinite), -1), b.negate(keep)
    yield b.scale(v.of(keep, v.other, infinite), -3), b.negate(v.of(keep, v.other))


def checks() -> Iterator[tuple[str, Check]]:
    v = _Values()
    for k in range(len(list(_logarithms(v)))):
        yield f"logarithm {k}", functools.partial(_is_logarithm, k)
    for k in range(len(list(_exponentials(v)))):
        yield f"exponential {k}", functools.partial(_is_exponential, k)
    yield "in pieces", _in_pieces


def _is_logarithm(k: int) -> None:
    """Each time of new terms, because of each it is remembered what is known of it."""
    v = _Values()
    value, expected = list(_logarithms(v))[k]
    assert logarithm(v.b.pool, value) == expected


def _is_exponential(k: int) -> None:
    v = _Values()
    value, expected = list(_exponentials(v))[k]
    assert exponential(v.b.pool, value, v.power) == expected  # pyright: ignore[reportArgumentType]  # only of numbers here


def _in_pieces() -> None:
    """What a pool of pieces answers is taken as it is."""
    v = _Values()
    pool: Any = v.b.pool
    pool.piecewise = SimpleNamespace(pointwise=lambda *_: v.y)
    assert logarithm(pool, v.x) is v.y
