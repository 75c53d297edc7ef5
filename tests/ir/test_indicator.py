from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import iota, multiply_views
from verifycompile.ir.indicator import NOT, both, either, equal, is_indicator, less, less_equal, negate
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS

VALUES = {"a": torch.tensor([-1.0, 0.0, 1.0, 2.0]), "b": torch.tensor([0.0, 0.0, 2.0, 1.0])}


def pair(pool: TermPool) -> tuple[View, View]:
    return pool.leaf("a", (4,)), pool.leaf("b", (4,))


def holds(view: View) -> list[bool]:
    return Evaluator(VALUES).view(view).bool().tolist()


def test_comparisons() -> None:
    pool = TermPool()
    a, b = pair(pool)
    assert holds(less(pool, a, b)) == [True, False, True, False]
    assert holds(less_equal(pool, a, b)) == [True, True, True, False]
    assert holds(equal(pool, a, b)) == [False, True, False, False]


def test_equality_is_symmetric_and_order_is_not() -> None:
    pool = TermPool()
    a, b = pair(pool)
    assert equal(pool, a, b) == equal(pool, b, a)
    assert less(pool, a, b) != less(pool, b, a)
    assert less(pool, a, b) != less_equal(pool, a, b)


def test_negation() -> None:
    pool = TermPool()
    a, b = pair(pool)
    assert negate(pool, less(pool, a, b)) == less_equal(pool, b, a)
    assert negate(pool, less_equal(pool, a, b)) == less(pool, b, a)
    assert negate(pool, equal(pool, a, b)).term.operation is NOT
    for view in (
        less(pool, a, b),
        less_equal(pool, a, b),
        equal(pool, a, b),
        both(pool, less(pool, a, b), equal(pool, b, b)),
    ):
        assert negate(pool, negate(pool, view)) == view
        assert holds(negate(pool, view)) == [not h for h in holds(view)]
    assert negate(pool, pool.zero((2,))) == pool.constant(as_scalar(1), (2,))


def test_or_and_and() -> None:
    pool = TermPool()
    a, b = pair(pool)
    p, q = less(pool, a, b), equal(pool, a, b)
    assert holds(both(pool, p, q)) == [x and y for x, y in zip(holds(p), holds(q), strict=True)]
    assert holds(either(pool, p, q)) == [x or y for x, y in zip(holds(p), holds(q), strict=True)]


def test_what_is_no_indicator() -> None:
    pool = TermPool()
    a, b = pair(pool)
    p = less(pool, a, b)
    assert not is_indicator(a)
    assert not is_indicator(p.scaled(as_scalar(2)))
    assert not is_indicator(multiply_views(pool, p, a))
    assert not is_indicator(Builder(pool).sum(p, None))
    assert not is_indicator(pool.constant(as_scalar(2), ()))
    assert is_indicator(pool.constant(as_scalar(1), ()))
    with pytest.raises(ValueError, match="negation of a value that is not an indicator"):
        negate(pool, a)


@pytest.mark.parametrize(
    ("number", "possible"), [(-1, False), (0, True), (3, True), (4, False), (Fraction(1, 2), False)]
)
def test_a_counter_meets_the_numbers_that_it_counts_and_no_others(number: Fraction, possible: bool) -> None:
    pool = TermPool()
    met = equal(pool, iota(pool, 4), pool.constant(Fraction(number), (4,)))
    assert met.is_zero is not possible


def test_comparisons_have_the_values_of_what_they_compare():
    """Of each two of a table: whole numbers and masks, counters beside multiples of others, and numbers."""
    leaves = {
        "x": torch.arange(-1.0, 11.0).reshape(3, 4), "y": torch.tensor([[0.0, 5, 1, 9]] * 3), "m": (torch.arange(12) % 3 == 0).reshape(3, 4) * 1.0,
        "n": (torch.arange(12) % 2 == 0).reshape(3, 4) * 1.0, "r": torch.tensor([[0.25, 1, -0.5], [2.75, 0, 3.5], [0.5, 4, 1], [-2.5, 9, 8]]).T,
    }  # fmt: skip
    b, evaluator = Builder(TermPool()), Evaluator(leaves)
    b.pool.combination_rules.extend(COMBINATION_LEMMAS)
    x, y = (b.pool.leaf(name, (3, 4), whole=True) for name in "xy")
    masks = [b.pool.leaf(name, (3, 4), indicator=True) for name in "mn"]
    outer, inner = (insert_dim(iota(b.pool, size), 1 - dim, 7 - size) for dim, size in enumerate((3, 4)))
    local = [b.sub(x, b.scale(outer, times)) for times in (4, 3, -4)]
    numbers = [b.pool.constant(as_scalar(number), (3, 4)) for number in (-1, 0, 1, 0.5, 3, 4)]
    views = [x, y, *masks, outer, inner, b.scale(inner, 2), b.scale(x, -1), b.scale(y, -2), *local, b.scale(masks[0], -1), *numbers]
    views.append(b.sub(b.sub(x, b.scale(inner, 3)), outer))
    real = b.pool.leaf("r", (3, 4))
    views += [real, b.scale(inner, 0.5), b.add(x, 0.5), b.add(x, real), b.mul(x, masks[0]), b.mul(y, real), b.scale(b.add(x, inner), -0.5)]
    given = [(view, evaluator.view(view)) for view in views]
    for (left, one), (right, other) in [*itertools.product(given, repeat=2)][::3]:
        for compared, of_tensors in ((equal, torch.eq), (less, torch.lt), (less_equal, torch.le)):
            for found, wanted in (
                (compared(b.pool, left, right), of_tensors(one, other)),
                (negate(b.pool, compared(b.pool, left, right)), ~of_tensors(one, other)),
            ):
                assert is_indicator(found)
                assert torch.equal(evaluator.view(found).bool(), wanted), (compared.__name__, left, right)
