"""Where a mask makes a value minus infinity, and which sums of such values are taken apart, as rows that mutants must fail."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import sympy

from tests.lemmas.conditions import Check
from verifycompile.ir.algebra import CONTRACT, elementwise, multiply_views
from verifycompile.ir.exponential import (
    EXPONENTIAL,
    LOGARITHM,
    MAXIMUM,
    WHERE,
    _factors,
    _hold_somewhere,
    _is_seen,
    exponential,
    is_positive,
    may_be_lowest,
)
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window import range_view
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.reduction import extreme

FUNCTIONS = (
    "exponential", "_is_number", "_keeps_masks_of", "_may_be_lowest", "_is_seen", "_hold_somewhere", "_fails_somewhere",
    "_factors", "_takes_some",
)  # fmt: skip
_BOUND = range(1, 2)


class _Values:
    """Three rows of three numbers: masks by row and column, one that is not known, and what they leave of ``x``."""

    def __init__(self) -> None:
        self.b = b = Builder(TermPool())
        self.x, self.y = (b.pool.leaf(name, (3, 3)) for name in "xy")
        self.keep = b.pool.leaf("keep", (3, 3), indicator=True)
        self.rows, self.columns = rows, columns = b.unsqueeze(b.iota(3), 1), b.unsqueeze(b.iota(3), 0)
        self.low, self.below = b.less_equal(columns, rows), b.less(columns, rows)
        self.up, self.above = b.less_equal(rows, columns), b.less(rows, columns)
        self.near = b.less_equal(b.sub(rows, 1), columns)
        number = b.pool.leaf("number", (3,), whole=True)
        self.same = b.equal(b.unsqueeze(number, 1), b.unsqueeze(number, 0))
        self.infinite = b.full(math.inf, (3, 3))
        self.minus = b.scale(self.infinite, -1)
        self.hidden = self.where(self.keep, self.x, self.minus)

    def where(self, *operands: View) -> View:
        return elementwise(self.b.pool, WHERE, (), operands)

    def of(self, *factors: View) -> View:
        return multiply_views(self.b.pool, *factors)

    def most(self, *operands: View) -> View:
        return elementwise(self.b.pool, MAXIMUM, (), operands)

    def log(self, value: View) -> View:
        return elementwise(self.b.pool, LOGARITHM, (), (value,))

    def largest(self, value: View) -> View:
        return extreme(self.b, value, [1], True, "max")


def _lowest(v: _Values) -> Iterator[tuple[View, bool]]:
    b, x, y, hidden = v.b, v.x, v.y, v.hidden
    e = b.exp(y)
    yield from ((x, False), (v.keep, False), (v.minus, True), (hidden, True), (b.add(x, y), False), (v.of(x, y), False))
    yield from ((b.add(y, hidden), True), (v.most(hidden, y), False), (v.most(hidden, b.add(y, hidden)), True))
    yield from ((v.most(x, y), False), (v.log(y), False), (v.log(b.sum(v.of(v.keep, e), [1])), True))
    yield from ((v.log(b.sum(v.of(v.low, e), [1])), False), (v.log(b.add(x, y)), False))
    for place in ("max", "min"):
        yield extreme(b, x, [1], True, place), False
        yield extreme(b, hidden, [1], True, place), True
    yield v.largest(v.where(v.low, x, v.minus)), False
    yield extreme(b, v.where(v.low, x, v.minus), [1], True, "min"), True
    yield extreme(b, v.where(v.low, x, v.infinite), [1], True, "min"), False
    yield extreme(b, v.where(v.low, x, v.infinite), [1], True, "max"), True


def _seen(v: _Values) -> Iterator[tuple[View, bool]]:
    b, x, y, minus, where = v.b, v.x, v.y, v.minus, v.where
    yield from ((where(v.low, x, minus), True), (where(v.below, x, minus), False), (where(v.keep, x, minus), False))
    yield from ((where(v.low, v.hidden, minus), False), (where(v.low, x, y), False), (where(v.above, x, y), False))
    yield from ((where(v.above, minus, x), True), (where(v.up, minus, x), False), (where(v.keep, minus, x), False))
    yield from ((where(v.above, minus, v.hidden), False), (where(v.above, v.infinite, x), False))
    yield from (
        (where(v.low, minus, minus), False),
        (x, False),
        (v.most(x, y), False),
        (v.most(v.hidden, minus), False),
    )
    yield b.scale(where(v.low, x, v.infinite), -1), True
    yield b.scale(where(v.low, x, minus), -1), False
    masked = [v.of(mask, minus) for mask in (v.above, v.up, v.keep)]
    yield from zip((b.add(x, value) for value in masked), (True, False, False), strict=True)
    yield from ((b.add(x, y), False), (b.add(x, b.scale(masked[0], -1)), False), (b.add(x, v.hidden), False))
    yield b.add(x, b.add(masked[0], masked[2])), False
    yield b.add(x, where(v.low, y, minus)), False
    yield b.scale(b.add(x, v.of(v.above, v.infinite)), -1), True
    yield b.add(x, v.of(v.above, v.keep, minus)), True
    yield b.add(x, v.of(b.negate(v.keep), minus)), False
    yield where(v.of(v.low, v.near), x, minus), True
    yield where(v.of(v.low, v.keep), x, minus), False
    yield where(v.of(v.below, v.near), x, minus), False
    yield where(b.negate(v.of(v.low, v.near)), minus, x), True
    yield where(b.negate(v.of(v.low, v.keep)), minus, x), False
    yield where(v.same, x, minus), True
    yield where(v.of(v.low, v.same), x, minus), True
    yield where(b.negate(v.of(v.low, v.same)), minus, x), True
    yield where(v.of(v.below, v.same), x, minus), False
    yield from ((masked[0], False), (v.most(x, masked[0]), False))
    third = [b.unsqueeze(value, 2) for value in (b.add(v.rows, 1), v.columns)]
    later = b.less_equal(b.add(third[0], b.iota(3)), third[1])
    yield b.add(x, b.sum(b.mul(later, b.full(-math.inf, (3, 3, 3))), [2])), False


def _exponentials(v: _Values) -> Iterator[tuple[View, View]]:
    b, x, y, hidden = v.b, v.x, v.y, v.hidden
    e, f, apart = b.exp(x), b.exp(y), lambda *views: v.of(*map(b.exp, views))
    whole = lambda value: elementwise(b.pool, EXPONENTIAL, (), (value,))  # noqa: E731 - two names of values
    yield b.full(0, (3, 3)), b.full(1, (3, 3))
    yield b.add(x, y), v.of(e, f)
    yield b.add(x, hidden), v.of(e, v.keep, e)
    largest = b.expand(v.largest(hidden), (3, 3))
    lowered = b.scale(largest, -1)
    yield b.add(hidden, lowered), v.of(v.keep, e, whole(lowered))
    yield b.add(x, b.scale(b.expand(v.largest(x), (3, 3)), -1)), apart(x, b.scale(b.expand(v.largest(x), (3, 3)), -1))
    other = b.expand(v.largest(b.add(y, hidden)), (3, 3))
    logarithm = v.log(b.expand(b.sum(v.of(v.keep, f), [1], True), (3, 3)))
    for value in (
        b.add(x, lowered), b.add(hidden, largest), b.add(b.add(hidden, lowered), y), b.add(x, b.scale(logarithm, -1)),
        b.add(b.add(hidden, lowered), b.scale(other, -1)), b.add(v.most(hidden, b.add(y, hidden)), x),
    ):  # fmt: skip
        yield value, whole(value)
    for base, is_taken in (
        (e, True),
        (b.full(2, (3, 3)), True),
        (x, False),
        (b.scale(e, -1), False),
        (b.full(-2, (3, 3)), False),
    ):
        yield b.scale(v.log(base), 3), b.power(base, 3) if is_taken else whole(b.scale(v.log(base), 3))
    total = b.sum(v.of(v.keep, f), [1], True)
    yield b.sub(total, v.log(total)), whole(b.sub(total, v.log(total)))
    wide = b.pool.leaf("wide", (3, 6))
    joined, partly = b.concatenate([hidden, v.where(v.keep, y, v.minus)], 1), b.concatenate([hidden, largest], 1)
    yield b.add(wide, joined), v.of(b.exp(wide), whole(joined))
    yield b.add(wide, partly), whole(b.add(wide, partly))


def checks() -> Iterator[tuple[str, Check]]:
    v = _Values()
    for k in range(len(list(_lowest(v)))):
        yield f"lowest {k}", functools.partial(_may_be_lowest, k)
    for k in range(len(list(_seen(v)))):
        yield f"seen {k}", functools.partial(_some_are_seen, k)
    for k in range(len(list(_exponentials(v)))):
        yield f"of sum {k}", functools.partial(_is_exponential, k)
    yield "sums of masks", _sums_of_masks
    yield "ranges", _ranges
    yield "in pieces", _in_pieces


def _may_be_lowest(k: int) -> None:
    value, expected = list(_lowest(_Values()))[k]
    assert may_be_lowest(value) is expected


def _some_are_seen(k: int) -> None:
    value, expected = list(_seen(_Values()))[k]
    assert _is_seen(value, _BOUND) is expected


def _is_exponential(k: int) -> None:
    v = _Values()
    value, expected = list(_exponentials(v))[k]
    assert exponential(v.b.pool, value, v.b.power) == expected


def _sums_of_masks() -> None:
    """Of a sum of products of masks nothing is said, as of its summands."""
    v = _Values()
    b = v.b
    total = b.sum(v.of(b.unsqueeze(v.low, 2), b.pool.leaf("z", (3, 3, 3), indicator=True)), [2])
    rows, columns, third = b.unsqueeze(v.rows, 2), b.unsqueeze(v.columns, 2), b.iota(3)
    of_both = b.mul(b.less_equal(columns, b.add(rows, third)), b.less_equal(columns, b.add(third, 1)))
    counted = b.sum(of_both, [2])
    for mask in (total, counted):
        assert mask.term.operation is CONTRACT
        assert not _hold_somewhere(_factors(mask), _BOUND)


def _ranges() -> None:
    """A sum within a range of a symbolic size, or of a part of an index, need not hold a position."""
    b = Builder(TermPool())
    size = sympy.Symbol("s", integer=True, positive=True)
    rows: tuple[tuple[tuple[Any, ...], Any, bool], ...] = (
        ((3, 3), (0, 2), True),
        ((3, size), (0, 2), False),
        ((3, 3), (0, size), False),
        ((3, 3), (size, 3), False),
    )
    for shape, span, expected in rows:
        values = b.exp(b.pool.leaf("x", shape))
        assert is_positive(b.sum(b.mul(range_view(b.pool, 1, shape, span), values), [1])) is expected
    within = range_view(b.pool, 1, (3, 3), (0, 1))
    values = b.exp(b.pool.leaf("y", (3, 3)))
    seen = b.less_equal(b.iota(3), b.unsqueeze(b.iota(3), 1))
    assert not is_positive(b.sum(b.mul(within, seen, values), [1]))
    last = b.narrow(range_view(b.pool, 1, (3, 3), (2, 3)), 1, 0, 2)
    assert not is_positive(b.sum(b.mul(last, b.narrow(values, 1, 0, 2)), [1]))
    cut = b.reshape(range_view(b.pool, 1, (3, 6), (0, 1)), (3, 2, 3))
    assert not is_positive(b.sum(b.mul(cut, b.exp(b.pool.leaf("z", (3, 2, 3)))), [1]))


def _in_pieces() -> None:
    """What a pool of pieces answers is taken as it is."""
    v = _Values()
    pool: Any = v.b.pool
    pool.piecewise = SimpleNamespace(pointwise=lambda *_: v.y)
    assert exponential(pool, v.x, v.b.power) is v.y
