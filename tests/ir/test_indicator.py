from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import CONTRACT, IOTA, iota, multiply_views, open_view
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import EQUAL, NOT, both, either, equal, implies, is_indicator, less, less_equal, negate
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import Operation, TermPool, View, identity_view
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS

if TYPE_CHECKING:
    from verifycompile.ir.piecewise import Piecewise

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
    counter, other = iota(pool, 4), pool.constant(Fraction(number), (4,))
    for pair in ((counter, other), (other, counter)):
        assert equal(pool, *pair).is_zero is not possible


def test_a_counter_may_meet_numbers_of_which_the_value_is_not_known() -> None:
    pool, size = TermPool(), sympy.Symbol("s", positive=True, integer=True)
    for counter, number in ((iota(pool, 4), size), (iota(pool, size), as_scalar(5))):
        assert equal(pool, counter, pool.constant(number, counter.shape)).term.operation is EQUAL


def test_numbers_are_equal_where_they_are_known_to_be() -> None:
    pool, size = TermPool(), sympy.Symbol("s")
    one, two, unknown = (pool.constant(number, (4,)) for number in (as_scalar(1), as_scalar(2), size))
    assert equal(pool, two, two) == equal(pool, one, one) == one
    assert equal(pool, two, one).is_zero
    assert equal(pool, pool.constant(as_scalar(1), (1,)), pool.zero((4,))) == pool.zero((4,))
    for pair in ((two, unknown), (unknown, two)):
        assert equal(pool, *pair).term.operation is EQUAL


def test_comparisons_of_masks_are_made_of_masks() -> None:
    pool = TermPool()
    m, n = (pool.leaf(name, (4,), indicator=True) for name in "mn")
    one, zero = pool.constant(as_scalar(1), (4,)), pool.zero((4,))
    assert equal(pool, m, one) == equal(pool, one, m) == m
    assert equal(pool, m, zero) == equal(pool, zero, m) == negate(pool, m)
    assert equal(pool, m, n) == both(pool, implies(pool, m, n), implies(pool, n, m))
    assert less(pool, m, n) == both(pool, negate(pool, m), n)
    assert less_equal(pool, m, n) == implies(pool, m, n)


def test_comparisons_of_whole_numbers_have_one_form() -> None:
    pool = TermPool()
    x, y = (pool.leaf(name, (4,), whole=True) for name in "xy")
    b = Builder(pool)
    assert less(pool, x, y) == less_equal(pool, b.add(x, 1), y) == negate(pool, less_equal(pool, y, x))
    assert less_equal(pool, b.add(x, 1), b.add(y, 1)) == less_equal(pool, x, y)
    assert less(pool, x, y).term.operation is AT_MOST


def test_what_is_negated_on_both_sides_is_turned_round() -> None:
    pool = TermPool()
    a, b = pair(pool)
    two, minus = pool.constant(as_scalar(2), (4,)), as_scalar(-1)
    for compared in (less, less_equal):
        assert compared(pool, a.scaled(minus), b.scaled(minus * 3)) == compared(pool, b.scaled(minus * -3), a)
        assert compared(pool, a.scaled(minus), two) == compared(pool, two.scaled(minus), a)
        assert compared(pool, two, a.scaled(minus)) == compared(pool, a, two.scaled(minus))
        for left, right in ((a.scaled(minus), b), (a.scaled(sympy.Symbol("t")), two), (a, two)):
            assert open_view(compared(pool, left, right)).operands == (left, right)


class InParts:
    """Says of what is done to each element that it is one value, or nothing."""

    def __init__(self, answer: View | None) -> None:
        self.answer = answer

    def pointwise(self, *_: object) -> View | None:
        return self.answer

    def application(self, *_: object) -> None:
        return None

    product = combination = application


def test_values_in_parts_are_compared_part_by_part() -> None:
    pool = TermPool()
    (a, b), mask = pair(pool), pool.leaf("m", (4,), indicator=True)
    compared: list[tuple[Callable[..., View], tuple[View, ...]]] = [
        (equal, (a, b)), (less, (a, b)), (less_equal, (a, b)), (negate, (mask,)),
    ]  # fmt: skip
    for function, operands in compared:
        plain = function(pool, *operands)
        for answer in (mask, None):
            pool.piecewise = cast("Piecewise", InParts(answer))
            assert function(pool, *operands) == (answer or plain)
            pool.piecewise = None


def test_masks_that_are_copied_or_met_once_are_masks() -> None:
    pool = TermPool()
    b = Builder(pool)
    m, n = (pool.leaf(name, shape, indicator=True) for name, shape in (("m", (3,)), ("n", (2,))))
    assert is_indicator(b.concatenate([m, n], 0))
    assert not is_indicator(b.concatenate([m, pool.leaf("x", (2,))], 0))
    for distinct in (True, False):
        order = pool.intern(Operation("order", places=True, distinct=distinct), (), (), (4,), 1, 0, (), (0,))
        place = View(as_scalar(1), order, (4, 4), (((1, 1, 4),),))
        number = View(as_scalar(1), pool.leaf("k", (4,), whole=True).term, (4, 4), (((0, 1, 4),),))
        assert is_indicator(b.sum(equal(pool, place, number), [1])) is distinct


@pytest.mark.parametrize("operation", [CONTRACT, Operation("copy", copies=True)], ids=lambda operation: operation.name)
def test_a_long_chain_of_masks_is_asked_from_its_beginning(operation: Operation) -> None:
    pool = TermPool()
    view = pool.leaf("m", (4,), indicator=True)
    for number in range(2 * sys.getrecursionlimit()):
        view = identity_view(pool.intern(operation, (number,), (view,), (4,), 1, 0, (), ()))
    assert is_indicator(view)


def test_a_place_in_a_part_is_one_in_the_whole() -> None:
    """``x - 4 r == i``, where i counts four places, is ``x == 4 r + i``."""
    pool = TermPool()
    b, shape = Builder(pool), (2, 3, 4)
    x, y = (pool.leaf(name, shape, whole=True) for name in "xy")
    q, r, i = (View(as_scalar(1), iota(pool, size).term, shape, (((dim, 1, size),),)) for dim, size in enumerate(shape))

    def place(*digits: tuple[int, int, int]) -> View:
        return View(as_scalar(1), iota(pool, math.prod(size for _, _, size in digits)).term, shape, (digits,))

    def compared(left: View, right: View) -> tuple[View, ...]:
        found = {equal(pool, left, right), equal(pool, right, left)}
        assert len(found) == 1
        return tuple(sorted(open_view(found.pop()).operands, key=lambda view: view.term.operation is IOTA))

    one, two = place((1, 1, 3), (2, 1, 4)), place((0, 1, 2), (1, 1, 3), (2, 1, 4))
    local = b.sub(x, b.scale(r, 4))
    assert compared(local, i) == (x, one)
    assert compared(b.sub(local, b.scale(q, 12)), i) == (x, two)
    assert compared(b.sub(b.add(local, y), b.scale(q, 12)), i) == (b.add(x, y), two)
    column, row = b.narrow(local, 2, 0, 1), View(i.coefficient, i.term, (1, 1, 4), i.axes)
    assert compared(column, row) == (dataclasses.replace(b.narrow(x, 2, 0, 1), shape=shape), one)
    for left, right in (
        (local, b.scale(i, 2)), (b.sub(x, b.scale(r, 3)), i), (b.add(x, b.scale(r, 4)), i), (b.sub(x, b.scale(i, 4)), i),
        (b.sub(x, b.scale(y, 4)), i), (b.sub(x, b.scale(r, 2)), y), (b.pointwise(MAXIMUM, b.scale(r, -4), x), i), (x, i), (local, y),
    ):  # fmt: skip
        pool.lemma_trace.clear()
        assert set(compared(left, right)) <= {left, right, left.scaled(as_scalar(-1)), right.scaled(as_scalar(-1))}
        assert pool.lemma_trace == []


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
