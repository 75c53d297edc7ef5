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
from verifycompile.ir.algebra import iota
from verifycompile.ir.indicator import less_equal
from verifycompile.ir.inequality import AT_MOST, are_attained, is_attained, is_whole
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder, Call

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
    x, mask, real = b.pool.leaf("x", (3, 4), whole=True), b.pool.leaf("m", (3, 4), indicator=True), b.pool.leaf("r", (3, 4))
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
    assert not any(is_attained(with_value, bound, opposite=opposite) for bound in ((0,), (1,), (0, 1)) for opposite in (True, False))
    assert not are_attained([with_value, with_value], (0, 1))
