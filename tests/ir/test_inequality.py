"""Inequalities of whole numbers: equal ones are one term, different ones are not, and all hold on numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_piecewise import piecewise_pool
from verifycompile.ir.algebra import elementwise, iota
from verifycompile.ir.indicator import less_equal
from verifycompile.ir.inequality import (
    AT_MOST,
    are_attained,
    is_attained,
    is_whole,
    merged_digits,
    split_digits,
    whole_at_most,
)
from verifycompile.ir.relabel import substitute
from verifycompile.ir.scalar import ONE, Scalar, as_scalar
from verifycompile.ir.term import CONSTANT, Digit, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.parts.stretches import joined

ROWS, RANK = 4, sympy.Symbol("rank", integer=True)
Case = Callable[[Builder, View, View], View]
"""From the positions of the query, one a row, and those of the key."""

CAUSAL: tuple[Case, ...] = (
    lambda b, q, k: b.less_equal(k, q),
    lambda b, q, k: b.less(k, b.add(q, 1)),
    lambda b, q, k: b.less_equal(0, b.sub(q, k)),
    lambda b, q, k: b.less(-1, b.sub(q, k)),
    lambda b, q, k: b.less(b.sub(k, q), 1),
    lambda b, q, k: b.less(b.sub(k, q), 0.5),
    lambda b, q, k: b.less_equal(b.sub(b.scale(k, 3), b.scale(q, 3)), 2),
    lambda b, q, k: b.less_equal(b.scale(k, 0.5), b.scale(q, 0.5)),
    lambda b, q, k: b.negate(b.less(q, k)),
    lambda b, q, k: b.negate(b.less_equal(1, b.sub(k, q))),
    lambda b, q, k: b.negate(b.negate(b.less_equal(k, q))),
)
OTHERS: tuple[Case, ...] = (
    lambda b, q, k: b.less(k, q),
    lambda b, q, k: b.less_equal(q, k),
    lambda b, q, k: b.less_equal(k, b.add(q, 1)),
    lambda b, q, k: b.less_equal(b.scale(k, 2), q),
    lambda b, q, k: b.less_equal(b.sub(b.scale(k, 3), b.scale(q, 3)), 3),
    lambda b, q, k: b.less_equal(b.add(k, q), 0),
)


def positions(b: Builder, first: object) -> tuple[View, View]:
    return b.unsqueeze(b.iota(ROWS, first), 1), b.iota(8)  # type: ignore[arg-type]


def builders() -> tuple[Builder, Builder]:
    pool = TermPool()
    return Builder(pool), Builder(pool, (2,), {RANK: 0})


def numbers(view: View) -> torch.Tensor:
    return Evaluator({}).view(view)


@pytest.mark.parametrize("case", range(len(CAUSAL)))
def test_equal_inequalities_are_one_term(case: int) -> None:
    _, b = builders()
    expected = CAUSAL[0](b, *positions(b, ROWS * RANK))
    assert CAUSAL[case](b, *positions(b, ROWS * RANK)) == expected
    rows, columns = torch.arange(8).reshape(2, ROWS, 1), torch.arange(8)
    assert torch.equal(numbers(expected).bool(), columns <= rows)


@pytest.mark.parametrize("case", range(len(OTHERS)))
def test_different_inequalities_are_not(case: int) -> None:
    _, b = builders()
    q, k = positions(b, ROWS * RANK)
    view = OTHERS[case](b, q, k)
    assert view != CAUSAL[0](b, q, k)
    zero = torch.zeros(2, ROWS, 8)
    rows, columns = torch.arange(8.0).reshape(2, ROWS, 1) + zero, torch.arange(8.0) + zero
    wanted = (columns < rows, rows <= columns, columns <= rows + 1, 2 * columns <= rows, columns - rows <= 1,
              columns + rows <= 0)[case]  # fmt: skip
    assert torch.equal(numbers(view).bool(), wanted)


def test_rows_of_all_ranks_are_those_of_one_device() -> None:
    single, b = builders()
    q, k = b.iota(ROWS, ROWS * RANK), b.iota(8)
    whole = single.less_equal(single.iota(8), single.unsqueeze(single.iota(8), 1))
    assert b.less_equal(0, b.sub(b.unsqueeze(q, 1), k)).term is whole.term
    assert b.less(k, b.unsqueeze(q, 1)).term is not whole.term


def test_digits_of_both_sides_cancel() -> None:
    single, b = builders()
    own = b.iota(ROWS, ROWS * RANK)
    local = single.less_equal(single.iota(ROWS), single.unsqueeze(single.iota(ROWS), 1))
    assert b.less_equal(own, b.unsqueeze(own, 1)).term is local.term


def test_what_rounding_takes_away() -> None:
    _, b = builders()
    blocks = b.scale(b.iota(3), 4)
    inner = b.add(b.unsqueeze(blocks, 1), b.iota(4))
    assert b.less_equal(b.unsqueeze(blocks, 1), inner) == b.full(1, (3, 4))
    assert b.less(inner, 4).term is b.less_equal(b.iota(3), 0).term
    below = b.less(inner, b.full(6, ()))
    assert torch.equal(numbers(below)[0].bool(), torch.arange(12).reshape(3, 4) < 6)


@pytest.mark.parametrize("seed", range(60))
def test_any_linear_inequality_holds_on_numbers(seed: int) -> None:
    random = Random(seed)
    pool = TermPool()
    b = Builder(pool)
    counter = b.reshape(b.iota(12), [3, 4])
    parts = (b.unsqueeze(b.iota(3), 1), b.iota(4), counter, pool.leaf("x", (3, 4), whole=True))
    values = (torch.arange(3).reshape(3, 1), torch.arange(4), torch.arange(12).reshape(3, 4),
              torch.randint(-9, 9, (3, 4), generator=torch.Generator().manual_seed(seed)))  # fmt: skip
    weights = [Fraction(random.choice([-4, -3, -1, 0, 0, 1, 2, 4, 8]), random.choice([1, 1, 2])) for _ in parts]
    constant = Fraction(random.randint(-20, 20), random.choice([1, 2, 3]))
    total = torch.full((3, 4), float(constant), dtype=torch.float64)
    for weight, value in zip(weights, values, strict=True):
        total = total + float(weight) * value
    left = b.combination(*((-w, p) for w, p in zip(weights[:2], parts[:2], strict=True)))
    right = b.combination(*zip(weights[2:], parts[2:], strict=True), (1, b.full(constant, ())))  # type: ignore[arg-type]
    view = (b.less if seed % 2 else b.less_equal)(left, right)
    assert torch.equal(Evaluator({"x": values[3]}).view(view).bool(), total > 1e-9 if seed % 2 else total >= -1e-9)
    opposite = Evaluator({"x": values[3]}).view(b.negate(view)).bool()
    assert torch.equal(opposite, total <= 1e-9 if seed % 2 else total < -1e-9)


def test_constants_decide() -> None:
    _, b = builders()
    counter = b.iota(8)
    assert b.less(counter, 8) == b.full(1, (8,))
    assert b.less(counter, 0) == b.full(0, (8,))
    assert b.less(counter, 7).term.operation is AT_MOST


def test_numbers_that_are_not_whole_are_left_alone() -> None:
    single, _ = builders()
    x, y = single.pool.leaf("x", (4,)), single.pool.leaf("y", (4,))
    assert single.less(x, y).term.operation.name == "less"
    assert single.negate(single.less(x, y)) == single.less_equal(y, x)
    assert single.less(single.iota(4), x) != single.less_equal(single.add(single.iota(4), 1), x)


def test_short_integers_are_left_alone() -> None:
    """A difference of two bytes that is negative is a large number."""
    single, _ = builders()
    x, y = single.pool.leaf("x", (4,), whole=True), single.pool.leaf("y", (4,), whole=True)
    assert single.less_equal(0, single.sub(x, y)) == single.less_equal(y, x)
    single.call = Call({"self": torch.uint8})
    assert single.less_equal(0, single.sub(x, y)) != single.less_equal(y, x)


def test_indicator_compared_with_a_number() -> None:
    single, _ = builders()
    mask = single.less(single.iota(8), 3)
    assert single.equal(mask, 1) == mask
    assert single.equal(0, mask) == single.negate(mask)
    x = single.pool.leaf("x", (4,))
    assert single.equal(x, 0) != x


def test_whole_values() -> None:
    b = Builder(TermPool())
    x, mask, real = (
        b.pool.leaf("x", (3, 4), whole=True),
        b.pool.leaf("m", (3, 4), indicator=True),
        b.pool.leaf("r", (3, 4)),
    )
    size = sympy.Symbol("s", integer=True)
    for value in (
        x, mask, b.scale(x, -3), b.add(x, mask), b.mul(x, x), b.mul(x, mask), b.sum(x, [0]), b.concatenate([x, b.mul(x, x)], 0), b.add(x, 2),
        real.scaled(as_scalar(0)), b.pool.zero((3, 4)),
    ):  # fmt: skip
        assert is_whole(value), value
    for value in (
        real, b.scale(x, 0.5), b.add(x, 0.5), b.add(x, real), b.mul(x, real), b.concatenate([x, real], 0), b.exp(x), x.scaled(size), b.power(x, -1),
        b.sum(real, [0]), b.scale(mask, Fraction(1, 3)),
    ):  # fmt: skip
        assert not is_whole(value), value


def test_inequalities_that_are_attained_are() -> None:
    """For each row some column, for each column some row, or some element of all; not where anything else is compared."""
    b = Builder(TermPool())
    row, column = b.unsqueeze(iota(b.pool, 3), 1), b.unsqueeze(iota(b.pool, 4), 0)
    x, evaluator = b.pool.leaf("x", (3, 4), whole=True), Evaluator({})
    found: set[bool] = set()
    for up, across, above in itertools.product((-2, 0, 1, 3), (-1, 0, 1, 2), range(-4, 5)):
        left, right = b.add(b.scale(row, up), b.pool.constant(as_scalar(above), (3, 4))), b.scale(column, across)
        view = less_equal(b.pool, left, right)
        if view.term.operation is not AT_MOST:
            continue
        value = evaluator.view(view).bool()
        if view.shape != (3, 4):
            continue
        for bound in ((0,), (1,), (0, 1)):
            for opposite, of in ((False, value), (True, ~value)):
                attained = is_attained(view, bound, opposite=opposite)
                somewhere = of.any(bound) if len(bound) > 1 else of.any(bound[0])
                assert bool(somewhere.all()) or not attained, (view, bound, opposite)
                found.add(attained)
    assert found == {True, False}
    with_value = less_equal(b.pool, b.add(x, row), column)
    assert with_value.term.operation is AT_MOST
    assert not any(
        is_attained(with_value, bound, opposite=opposite)
        for bound in ((0,), (1,), (0, 1))
        for opposite in (True, False)
    )
    assert not are_attained([with_value, with_value], (0, 1))


SHAPE = (3, 4, 6)


def counters(pool: TermPool) -> list[View]:
    """Of all dimensions, and of the upper and the lower digits of the last one."""
    digits: list[Digit] = [(0, 1, 3), (1, 1, 4), (2, 1, 6), (2, 2, 3), (2, 1, 2)]
    return [View(ONE, iota(pool, digit[2]).term, SHAPE, ((digit,),)) for digit in digits]


def inequality(pool: TermPool, weights: tuple[int, ...], constant: int) -> View:
    """``0 <= sum(weight * counter) + constant``."""
    b = Builder(pool)
    terms = zip(weights, counters(pool), strict=True)
    found = whole_at_most(pool, pool.zero(SHAPE), b.combination((constant, b.full(1, SHAPE)), *terms))
    assert found is not None
    return found


def everywhere_some(value: torch.Tensor, bound: tuple[int, ...]) -> bool:
    return bool(value.expand(SHAPE).amax(bound).all())


@pytest.mark.parametrize("seed", range(3))
def test_an_inequality_is_attained_exactly_where_it_is(seed: int) -> None:
    random, pool, found = Random(seed), TermPool(), set[bool]()
    for _ in range(100):
        view = inequality(pool, tuple(random.choice((-4, -2, -1, 0, 1, 2, 3)) for _ in range(5)), random.randint(-9, 9))
        if view.term.operation is not AT_MOST:
            continue
        value = numbers(view).bool()
        for bound in ((0,), (1,), (2,), (0, 2)):
            for opposite, of in ((False, value), (True, ~value)):
                assert is_attained(view, bound, opposite=opposite) == everywhere_some(of, bound), (view, bound)
                found.add(is_attained(view, bound, opposite=opposite))
    assert found == {True, False}


BOUNDS = ((0, 1, -1, 0, 0), (0, 0, -1, 0, 0), (2, 0, 1, 0, 0), (1, 0, -1, 0, 0), (0, -1, 1, 0, 0), (1, -1, 0, 0, 0),
          (1, 0, 2, 0, 0), (-1, 0, -2, 0, 0), (1, 0, 0, 3, 1), (-1, 0, 0, -3, -1), (0, 0, 0, 1, 0), (0, 0, 0, -1, 0), (1, 0, 0, 2, 1), (0, 0, 1, 0, 1), (0, 0, 2, 0, 0))  # fmt: skip


@pytest.mark.parametrize("bound", [(2,), (1,), (1, 2)], ids=str)
def test_inequalities_are_attained_together_only_where_they_are(bound: tuple[int, ...]) -> None:
    pool, found = TermPool(), list[bool]()
    views = [inequality(pool, weights, constant) for weights in BOUNDS for constant in (-3, -2, 0, 1, 2, 3)]
    holds = {view: numbers(view).bool() for view in views if view.term.operation is AT_MOST}
    for one, other in itertools.product(holds, holds):
        together = everywhere_some(holds[one] & holds[other], bound)
        found.append(are_attained((one, other), bound))
        assert together or not found[-1], (one, other)
    assert 0 < sum(found) < len(found)
    if bound == (2,):  # between a first and a last one
        assert are_attained([inequality(pool, w, c) for w, c in (((0, 1, -1, 0, 0), 0), ((0, -1, 1, 0, 0), 0))], bound)
        assert are_attained([inequality(pool, (0, 0, -1, 0, 0), 0), inequality(pool, (0, 0, -1, 0, 0), 4)], bound)
        assert are_attained([inequality(pool, (0, 0, 1, 0, 0), -5), inequality(pool, (0, 0, 1, 0, 0), -1)], bound)
        assert are_attained([inequality(pool, (1, 0, 1, 0, 0), -5), inequality(pool, (0, 0, 1, 0, 0), -1)], bound)


def test_what_bounds_nothing_does_not_count() -> None:
    pool = TermPool()
    assert are_attained([inequality(pool, (0, 3, 2, 0, 0), -4)], (1, 2))
    counted = [View(ONE, iota(pool, 4).term, (4, 4, 6), (((dim, 1, 4),),)) for dim in range(2)]
    last = View(ONE, iota(pool, 6).term, (4, 4, 6), (((2, 1, 6),),))
    found = whole_at_most(pool, counted[0], Builder(pool).add(counted[1], last))
    assert found is not None
    equal = substitute(found, {0: [(0, 1, 4)], 1: [(0, 1, 4)], 2: [(1, 1, 6)]}, (4, 6))
    assert torch.equal(Evaluator({}).view(equal), torch.ones(4, 6, dtype=torch.float64))
    assert are_attained([equal, equal], (0, 1))


@pytest.mark.parametrize("lengths", [(2, 2, 2), (2, 3)], ids=str)
def test_numbers_that_are_put_together_are_bounded_by_their_pieces(lengths: tuple[int, ...]) -> None:
    """For each row, whose number is one of several pieces, some column; where a piece is not made of digits, none."""
    b, found = Builder(TermPool()), set[bool]()
    column, x = b.unsqueeze(iota(b.pool, 8), 0), b.pool.leaf("x", (2,), whole=True)
    for firsts in itertools.product((-2, 0, 3, 7), (6, 9), (1, 5)):
        pieces = [b.iota(length, first) for length, first in zip(lengths, firsts, strict=False)]
        for weight, other in itertools.product((1, -1, 2), (1, -1)):
            rows = b.scale(b.unsqueeze(joined(b.pool, pieces, 0), 1), weight)
            view = less_equal(b.pool, b.scale(column, other), rows)
            if view.term.operation is not AT_MOST:
                continue
            value = Evaluator({}).view(view).bool()
            for bound, opposite in itertools.product(((0,), (1,)), (True, False)):
                attained = is_attained(view, bound, opposite=opposite)
                everywhere = bool((value ^ opposite).any(bound[0]).all())
                assert everywhere or not attained, (view, bound, opposite)
                assert attained == everywhere or bound == (0,), (view, opposite)
                found.add(attained)
    assert found == {True, False}
    unknown = b.unsqueeze(joined(b.pool, [b.iota(2), x, b.iota(2, 5)], 0), 1)
    compared = less_equal(b.pool, column, unknown)
    assert compared.term.operation is AT_MOST
    assert not is_attained(compared, (1,))
    symbolic = b.unsqueeze(joined(b.pool, [b.iota(2, 5), b.full(s, x.shape), b.iota(2, 5)], 0), 1)
    shape = 4 + x.shape[0], column.shape[-1]
    sides = b.expand(b.add(column, 1), shape), b.expand(symbolic, shape)
    assert not is_attained(elementwise(b.pool, AT_MOST, (0,), sides), (1,))
    assert not is_attained(x, (0, 1))
    assert not are_attained([x, x], (0, 1))


def valued(digits: dict[Digit, Scalar], place: tuple[int, ...]) -> Scalar:
    return sum(w * (place[d] // low % size) for (d, low, size), w in digits.items())  # type: ignore[misc, return-value]


@pytest.mark.parametrize("seed", range(20))
def test_digits_are_cut_and_joined_as_numbers(seed: int) -> None:
    random = Random(seed)
    of_dim: list[Digit] = [
        (0, low, size) for low, size in ((1, 24), (1, 2), (2, 3), (4, 3), (1, 4), (6, 4), (12, 2), (2, 12), (3, 2))
    ]
    digits: dict[Digit, Scalar] = {
        d: Fraction(random.choice((1, 2, 3, 4, 6, -2, -4))) for d in random.sample(of_dim, 3)
    }
    digits[1, 1, 6] = ONE
    split, joined = split_digits(digits), merged_digits(digits)
    for place in itertools.product(range(24), range(6)):
        assert valued(split, place) == valued(joined, place) == valued(digits, place)


s, t = sympy.symbols("s t", positive=True, integer=True)


def test_digits_meet_where_they_nest() -> None:
    whole, upper, lower = (0, 1, 12), (0, 3, 4), (0, 1, 3)
    assert split_digits({whole: ONE, upper: -3 * ONE, (1, 1, 4): ONE}) == {lower: ONE, upper: ONE * 0, (1, 1, 4): ONE}
    assert split_digits({whole: ONE, (1, 2, 3): ONE}) == {whole: ONE, (1, 2, 3): ONE}
    alone: dict[Digit, Scalar] = {(0, 1, 12): ONE, (0, 2, 3): ONE, (0, 3, 4): ONE}
    assert split_digits(alone)[0, 1, 12] == 1
    for digit in ((0, 1, s), (0, s, 4)):
        assert split_digits({digit: ONE, whole: ONE}) == {digit: ONE, whole: ONE}
    assert merged_digits({upper: 3 * ONE, lower: ONE, (1, 1, 4): ONE}) == {whole: ONE, (1, 1, 4): ONE}
    assert merged_digits({upper: 2 * ONE, lower: ONE}) == {upper: 2 * ONE, lower: ONE}


def test_sizes_that_are_not_known() -> None:
    b = Builder(TermPool())
    row, column, x = b.unsqueeze(b.iota(3), 1), b.iota(4), b.pool.leaf("x", (3, 4), whole=True)
    real, symbolic = b.pool.leaf("r", (3, 4)), b.iota(s)
    compared = b.less_equal(b.scale(row, s), column)
    assert compared.term.operation is AT_MOST
    assert compared.term.attributes == (0,)
    assert [view.coefficient for view in compared.term.operands] == [s, 1]
    assert b.less(b.scale(row, s), column).term.attributes == (-1,)
    assert b.less_equal(b.scale(column, 2), b.scale(row, 2 * s)).term.attributes == (0,)
    assert not is_attained(compared, (0, 1))
    for left in (
        b.scale(row, s / 2),
        b.scale(row, s - t),
        b.add(b.scale(row, s), 0.5),
        b.add(x, s),
        b.add(b.scale(row, s), b.scale(x, 0.5)),
    ):
        assert b.less_equal(left, column).term.operation is not AT_MOST, left
    for bound in (0, 7):
        within = b.less_equal(symbolic, bound)
        assert within.term.operation is AT_MOST
        assert not is_attained(within, ())
        assert not are_attained([within, within], (0,))
    assert b.less_equal(b.add(b.scale(b.unsqueeze(symbolic, 1), 1), b.scale(column, 4)), 7).term.operation is AT_MOST
    assert b.less_equal(x, b.add(x, 1)) == b.full(1, (3, 4))
    assert b.less_equal(real.scaled(as_scalar(0)), x).term.operation is AT_MOST


def test_counters_with_fixed_digits() -> None:
    pool = TermPool()
    fixed = View(ONE, iota(pool, 12).term, (4,), (((CONSTANT, 2, 3), (0, 1, 4)),))
    found = whole_at_most(pool, fixed, pool.constant(as_scalar(9), (4,)))
    assert found is not None
    assert numbers(found).tolist() == [1, 1, 0, 0]
    symbolic = View(ONE, iota(pool, 3 * s).term, (s,), (((CONSTANT, 2, 3), (0, 1, s)),))
    assert whole_at_most(pool, symbolic, pool.constant(as_scalar(9), (s,))) is None


def test_parts_of_a_bound_are_ones_and_zeros() -> None:
    """Of one position alone: others are compared as they are."""
    pool = piecewise_pool()
    b = Builder(pool)
    positions, x = b.iota(6), pool.leaf("x", (6,), whole=True)
    places = torch.arange(6)
    for at in (1, 2, 5):
        for view, wanted in (
            (b.less(positions, at), places < at), (b.less(at - 1, positions), at - 1 < places),
            (b.less(b.scale(positions, 2), 2 * at), places < at), (b.less(b.add(b.sub(positions, x), x), at), places < at),
        ):  # fmt: skip
            assert view.term.operation is not AT_MOST
            assert torch.equal(numbers(view).bool(), wanted)
    digit = View(ONE, iota(pool, 3).term, (6,), (((0, 2, 3),),))
    rows, columns = b.unsqueeze(positions, 1), b.iota(4)
    assert b.less(b.add(rows, columns), b.add(columns, 2)).term.operation is not AT_MOST
    for view in (b.less(digit, 2), b.less(b.add(positions, x), 3), b.less(b.add(rows, columns), 5)):
        assert view.term.operation is AT_MOST
