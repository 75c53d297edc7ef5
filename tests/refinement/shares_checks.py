"""What must hold of quotients by sums in the ring prover, as checks that the mutants of these functions must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from unittest import mock

import sympy

from tests.lemmas.conditions import Check
from verifycompile.ir.term import View
from verifycompile.refinement import ring
from verifycompile.refinement.check import new_pool
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.builder import Builder

FUNCTIONS = ("taken_apart", "together", "_power", "_only_powers")
_SHAPE = 3, 4
_Row = tuple[bool, Callable[["Values"], tuple[View, View]]]
"""Whether two values are found equal, and the values."""


class Values:
    """A pool with leaves. ``m`` and ``n`` are masks, so that no number tells values apart that have ``m`` as a factor."""

    def __init__(self) -> None:
        self.b = b = Builder(new_pool())
        self.x, self.y, self.z = (b.pool.leaf(name, _SHAPE) for name in "xyz")
        self.m, self.n = (b.pool.leaf(name, _SHAPE, indicator=True) for name in "mn")
        self.e = b.exp(self.x)
        self.along = b.sum(b.exp(self.y), [0], True)
        self.one = b.full(1, _SHAPE)
        self.pieced = b.exp(b.pool.leaf("p", _SHAPE))

    def over(self, total: View, *factors: View, power: object = -1) -> View:
        """The product of factors and of a power of a total."""
        return self.b.mul(*factors, self.b.power(total, power))  # pyright: ignore[reportArgumentType]  # a number

    def pieces(self, count: int) -> list[View]:
        """The sums of ``pieced`` over the parts of each row."""
        extent = _SHAPE[1] // count
        leaf = self.b.pool.leaf("p", _SHAPE)
        parts = (self.b.narrow(leaf, 1, k * extent, extent) for k in range(count))
        return [self.b.sum(self.b.exp(part), [1], True) for part in parts]

    def rows(self, total: View, power: object) -> tuple[View, View]:
        """A product with a share written at once, and as a sum of two products."""
        share = self.over(total, self.e, power=power)
        return self.b.mul(share, self.b.add(self.y, 1)), self.b.add(self.b.mul(share, self.y), share)


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, (expected, made) in enumerate(_rows()):
        for summed in (False, True):
            yield f"share {number}", functools.partial(_are_equal, made, expected, summed=summed)
    yield "a whole sum is its parts", _without_clearing
    for number, row in enumerate(_limits()):
        yield f"limit {number}", functools.partial(_within, *row)


def _are_equal(made: Callable[[Values], tuple[View, View]], expected: bool, *, summed: bool) -> None:
    values = Values()
    sides = [values.b.mul(values.m, side) for side in made(values)]
    if summed:
        sides = [values.b.contraction("m k -> m", side) for side in sides]
    assert equal_in_ring(values.b.pool, *sides) is expected


def _rows() -> Iterator[_Row]:
    plus_one: Callable[[Values], View] = lambda v: v.b.add(1, v.e)  # noqa: E731 - a name for one sum
    half = sympy.Rational(1, 2)
    yield (
        True,
        lambda v: (
            v.over(plus_one(v), v.e, power=-3 * half),
            v.b.sub(v.over(plus_one(v), v.one, power=-half), v.over(plus_one(v), v.one, power=-3 * half)),
        ),
    )
    yield True, lambda v: (v.over(plus_one(v), v.e), v.b.sub(1, v.over(plus_one(v), v.one)))
    yield False, lambda v: (v.over(plus_one(v), v.e), v.b.add(1, v.over(plus_one(v), v.one)))
    yield (
        True,
        lambda v: (
            v.over(plus_one(v), v.e, power=-2),
            v.b.sub(v.over(plus_one(v), v.one), v.over(plus_one(v), v.one, power=-2)),
        ),
    )
    yield (
        True,
        lambda v: (
            v.over(plus_one(v), v.e, v.e),
            v.b.add(v.b.sub(v.e, 1), v.over(plus_one(v), v.one)),
        ),
    )
    yield (
        True,
        lambda v: (
            v.b.mul(2, v.over(v.b.add(1, v.b.mul(2, v.e)), v.e)),
            v.b.sub(1, v.over(v.b.add(1, v.b.mul(2, v.e)), v.one)),
        ),
    )
    yield True, lambda v: _rest(v, v.b.add(v.e, v.b.exp(v.y)), v.b.exp(v.y))
    yield True, lambda v: _rest(v, v.b.add(v.e, v.b.mul(v.z, v.z)), v.b.mul(v.z, v.z))
    yield True, lambda v: _rest(v, v.b.add(v.e, v.b.mul(v.z, v.z), 1), v.b.add(v.b.mul(v.z, v.z), 1))
    # What is left alone: sums that may be zero, roots, powers that divide nothing or that are no numbers.
    yield False, lambda v: _rest(v, v.b.sub(v.e, 1), v.b.full(-1, _SHAPE))
    yield (
        False,
        lambda v: (
            v.over(plus_one(v), v.e, power=-half),
            v.b.sub(v.b.power(plus_one(v), half), v.over(plus_one(v), v.one, power=-half)),
        ),
    )
    twice: Callable[[Values], View] = lambda v: v.b.mul(2, plus_one(v))  # noqa: E731 - a name for one sum
    yield (
        False,
        lambda v: (
            v.over(twice(v), v.e, power=-3 * half),
            v.b.sub(v.over(twice(v), v.one, power=-half), v.over(twice(v), v.one, power=-3 * half)),
        ),
    )
    yield (
        False,
        lambda v: (
            v.b.add(v.over(twice(v), v.e, power=-3 * half), v.over(plus_one(v), v.one)),
            v.b.add(
                v.b.sub(v.over(twice(v), v.one, power=-half), v.over(twice(v), v.one, power=-3 * half)),
                v.over(plus_one(v), v.one),
            ),
        ),
    )
    for power in (5, -1, -2, -half, -sympy.Symbol("p", positive=True)):
        yield True, lambda v, power=power: v.rows(plus_one(v), power)
    yield True, lambda v: v.rows(v.b.sum(v.e, [1], True), -1)
    # Shares of another multiple than what is shared.
    for other in (lambda v: v.n, lambda v: v.b.mul(v.z, v.z), lambda v: v.b.add(1, v.b.exp(v.z))):
        yield False, lambda v, other=other: _rest(v, v.b.add(1, v.b.mul(v.e, other(v))), v.one)
    yield False, lambda v: _rest(v, v.b.add(1, v.b.mul(v.e, v.b.exp(v.z))), v.one)
    yield True, lambda v: v.rows(v.b.add(1, v.b.mul(v.z, v.z)), -1)
    # Sums that hold others, and what is divided by a summand too.
    first, second, third = (lambda v, name=name: v.b.exp(v.b.pool.leaf(name, _SHAPE)) for name in "abc")
    both: Callable[[Values], View] = lambda v: v.b.add(first(v), second(v))  # noqa: E731 - a name for one sum
    whole: Callable[[Values], View] = lambda v: v.b.add(first(v), second(v), third(v))  # noqa: E731 - the same
    yield (
        True,
        lambda v: (
            v.b.add(v.over(whole(v), third(v), v.over(both(v), v.one)), v.over(whole(v), v.one)),
            v.over(both(v), v.one),
        ),
    )
    yield (
        False,
        lambda v: (
            v.b.add(v.over(whole(v), third(v), v.over(both(v), v.one)), v.over(whole(v), v.one)),
            v.over(whole(v), v.one),
        ),
    )
    for one, other in ((first, second), (second, first)):
        yield (
            True,
            lambda v, one=one, other=other: (
                v.over(both(v), other(v), v.over(one(v), v.one)),
                v.b.sub(v.over(one(v), v.one), v.over(both(v), v.one)),
            ),
        )
        yield (
            False,
            lambda v, one=one, other=other: (
                v.over(both(v), other(v), v.over(one(v), v.one)),
                v.b.sub(v.over(other(v), v.one), v.over(both(v), v.one)),
            ),
        )
    for power in (2, 3):
        yield (
            True,
            lambda v, power=power: (
                v.over(whole(v), v.b.power(both(v), power)),
                v.b.sub(v.b.power(both(v), power - 1), v.over(whole(v), third(v), v.b.power(both(v), power - 1))),
            ),
        )
    # A sum over an index, and sums over its parts.
    for parts in (2, 4):
        yield True, lambda v, parts=parts: _merged(v, parts, v.pieces(parts))
        yield False, lambda v, parts=parts: _merged(v, parts, [*v.pieces(parts)[1:], v.pieces(parts)[0]])
    yield False, lambda v: _merged(v, 2, v.pieces(4)[:2])


def _merged(v: Values, parts: int, found: list[View]) -> tuple[View, View]:
    """The share of what is not in the first part, as the shares of the others, and by those of two parts alone."""
    *_, last = v.pieces(parts)
    total = v.b.sum(v.pieced, [1], True)
    return v.over(total, last), v.b.sub(1, v.b.add(*(v.over(total, part) for part in found[:-1]), 0))


def _rest(v: Values, total: View, rest: View) -> tuple[View, View]:
    """The share of an exponential in a total, and one less the share of the rest."""
    return v.over(total, v.e), v.b.sub(1, v.over(total, rest))


def _without_clearing() -> None:
    """A multiple of a sum that a part of it divides, where nothing is multiplied by what divides both values."""
    values = Values()
    first, second = values.pieces(2)
    total = values.b.sum(values.pieced, [1], True)
    with mock.patch.object(ring, "_MAX_DENOMINATORS", 0):
        assert equal_in_ring(values.b.pool, values.over(first, total), values.b.add(1, values.over(first, second)))


def _limits() -> Iterator[tuple[int, bool, Callable[[Values], tuple[View, View]]]]:
    """How many products an expansion may have, whether that is enough, and values."""
    for most in (1, 2, 3, 4):
        yield most, most >= 4, lambda v: v.rows(v.b.add(1, v.e), -1)
    # A share of a share is opened twice, one of which a factor is missing not at all.
    yield (
        3,
        True,
        lambda v: (v.over(v.b.add(1, v.e), v.e, v.e), v.b.add(v.b.sub(v.e, 1), v.over(v.b.add(1, v.e), v.one))),
    )
    yield 2, True, lambda v: v.rows(v.b.add(1, v.b.mul(v.e, v.along)), -1)


def _within(most: int, expected: bool, made: Callable[[Values], tuple[View, View]]) -> None:
    values = Values()
    left, right = (values.b.mul(values.m, side) for side in made(values))
    with mock.patch.object(ring, "_MAX_PRODUCTS", most):
        assert equal_in_ring(values.b.pool, left, right) is expected
