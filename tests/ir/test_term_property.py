"""Properties of terms are asked once for each term, however many paths lead to it, and without recursion."""

from __future__ import annotations

from fractions import Fraction

import pytest

from verifycompile.ir.algebra import (
    EXPONENTIAL,
    combine,
    elementwise,
    has_infinity,
    multiply_views,
    open_view,
    sum_over,
)
from verifycompile.ir.exponential import MAXIMUM, POWER, is_positive, may_be_lowest
from verifycompile.ir.indicator import LESS, is_indicator
from verifycompile.ir.inequality import is_whole
from verifycompile.ir.pieces import CONCATENATE
from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.term import Operation, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.refinement.check import new_pool
from verifycompile.rewrites.finders import shares

DEPTH = 1_200


def chain(pool: TermPool, first: View, depth: int = DEPTH) -> View:
    """``depth`` steps of ``y = y + sqrt(y)``: two to the power of ``depth`` paths lead to the first value."""
    value = first
    for _ in range(depth):
        value = combine(
            pool,
            [elementwise(pool, MAXIMUM, (), (value, first)), elementwise(pool, POWER, (Fraction(1, 3),), (value,))],
        )
    return value


def test_what_holds_no_infinity() -> None:
    held = {"finite": True, "indicator": True, "whole": True, "places": True, "extreme": False, "nonnegative": False}
    assert {field: Operation("of", **{field: True}).is_finite for field in held} == held


def test_each_term_is_asked_once() -> None:
    asked: list[Term] = []
    pool = TermPool()
    is_known = TermProperty(lambda _: True, lambda term: asked.append(term) is None)
    value = chain(pool, pool.leaf("x", (4,)))
    assert is_known(value.term)
    assert is_known(value.term)
    assert len(asked) == len(set(asked))
    assert 0 < len(asked) <= len(pool)


def test_operands_are_asked_only_where_the_answer_depends_on_them() -> None:
    pool = TermPool()
    value = chain(pool, pool.leaf("x", (4,)), 3)
    asked: list[Term] = []
    assert not TermProperty(lambda _: False, lambda term: bool(asked.append(term)))(value.term)
    assert asked == [value.term]


@pytest.mark.parametrize("positive", [True, False])
def test_signs_of_a_long_chain(positive: bool) -> None:
    pool = TermPool()
    x = pool.leaf("x", (4,))
    value = chain(pool, elementwise(pool, EXPONENTIAL, (), (x,)) if positive else x)
    assert is_nonnegative(value) is positive
    assert is_positive(chain_of_sums(pool, elementwise(pool, EXPONENTIAL, (), (x,)) if positive else x)) is positive
    assert not may_be_lowest(value)
    assert not has_infinity(value)


def chain_of_sums(pool: TermPool, first: View) -> View:
    value = first
    for _ in range(DEPTH):
        value = combine(
            pool,
            [
                elementwise(pool, POWER, (Fraction(1, 3),), (value,)),
                elementwise(pool, POWER, (Fraction(1, 5),), (value,)),
            ],
        )
    return value


@pytest.mark.parametrize("indicator", [True, False])
def test_masks_of_a_long_chain(indicator: bool) -> None:
    pool = TermPool()
    mask = pool.leaf("m", (4, 4), indicator=indicator)
    whole = pool.leaf("m", (4, 4), whole=True)
    value, counts = mask, whole if indicator else mask
    for _ in range(DEPTH):
        value = elementwise(pool, CONCATENATE, (), (value, value))
        counts = elementwise(pool, CONCATENATE, (), (counts, counts))
    assert is_indicator(value) is indicator
    assert is_whole(counts) is indicator
    assert is_indicator(elementwise(pool, LESS, (), (value, counts)))


def polynomial(depth: int) -> int:
    """Terms made for the sum over a batch of ``y``, ``depth`` times ``y = y * y + w``, and of its products."""
    pool = new_pool()
    value = pool.leaf("x", (4, 8))
    product = pool.leaf("tangent", (4, 8))
    for number in range(depth):
        weight = pool.leaf(f"w{number}", (8,))
        value = combine(
            pool, [multiply_views(pool, value, value), View(weight.coefficient, weight.term, (4, 8), (((1, 1, 8),),))]
        )
        product = multiply_views(pool, product, value)
        sum_over(pool, value, [0])
        sum_over(pool, product, [0])
    return len(pool)


def test_products_of_sums_are_not_written_out() -> None:
    assert polynomial(24) < 4 * polynomial(12)


def test_rests_of_shares_are_looked_for_among_quotients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[View] = []
    monkeypatch.setattr(shares, "open_view", lambda view: (opened.append(view), open_view(view))[1])
    polynomial(12)
    assert opened == []
    found: list[int] = []
    for number in (8, 32):
        pool = new_pool()
        leaves = [pool.leaf(f"x{k}", (4,)) for k in range(number)]
        shared = elementwise(pool, POWER, (Fraction(-1),), (leaves[0],))
        opened.clear()
        combine(pool, [multiply_views(pool, x, y) for x, y in zip(leaves, [shared, *leaves[1:]], strict=True)])
        found.append(len(opened))
    assert 0 < found[1] <= 4 * found[0]
