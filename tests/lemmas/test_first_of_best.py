"""The least number of the parts that hold the best element is that of the first such part, under its conditions alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import iota
from verifycompile.ir.exponential import WHERE
from verifycompile.ir.indicator import equal, less, less_equal, negate
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.extreme_places import place
from verifycompile.rewrites.operators.reduction import reduce_extreme

ROWS, PARTS, LENGTH = 3, 4, 2
SHAPE = (ROWS, PARTS)


class Values:
    """The best element of each part, and of all of them, and the number of the place in the part."""

    def __init__(self, kind: str) -> None:
        self.b, self.kind = Builder(TermPool()), kind
        table = self.b.pool.leaf("t", (*SHAPE, LENGTH))
        self.of_part = reduce_extreme(self.b.pool, table, [2], kind)
        self.of_all = self.best(self.of_part)
        self.place = place(self.b, kind, table, 2, False)

    def best(self, view: View) -> View:
        return insert_dim(reduce_extreme(self.b.pool, view, [1], self.kind), 1)

    def leaf(self, name: str) -> View:
        return self.b.pool.leaf(name, SHAPE)

    def number(self, factor: int = LENGTH, start: int = 0, number_of_place: View | None = None) -> View:
        counter = self.b.expand(self.b.unsqueeze(iota(self.b.pool, PARTS), 0), SHAPE)
        inner = self.place if number_of_place is None else number_of_place
        return self.b.add(self.b.scale(counter, factor), inner, start)

    def chosen(self, mask: View, number: View, others: View | int = PARTS * LENGTH) -> View:
        return self.b.pointwise(WHERE, mask, number, others)

    def is_best(self, compare: Callable[..., View] = equal, *, turned: bool = False) -> View:
        sides = (self.of_all, self.of_part) if turned else (self.of_part, self.of_all)
        return compare(self.b.pool, *sides)


def _bound(values: Values, compare: Callable[..., View], *, inner: bool) -> View:
    """A comparison in the direction in which it chooses the best, or what is not."""
    return values.is_best(compare, turned=(values.kind == "max") != inner)


RIGHT: tuple[Callable[[Values], View], ...] = (
    lambda v: v.chosen(v.is_best(), v.number()),
    lambda v: v.chosen(v.is_best(turned=True), v.number(), PARTS * LENGTH - 1),
    lambda v: v.chosen(negate(v.b.pool, v.is_best()), v.b.full(99, SHAPE), v.number()),
    lambda v: v.chosen(_bound(v, less_equal, inner=False), v.number()),
    lambda v: v.chosen(_bound(v, less, inner=True), v.b.full(99, SHAPE), v.number()),
    lambda v: v.chosen(v.is_best(), v.number(1, 0, v.b.full(0, SHAPE))),
    lambda v: v.chosen(v.is_best(), v.number(3, 0, v.b.full(0, SHAPE)), 11),
    lambda v: v.chosen(v.is_best(), v.number(LENGTH + 1), 99),
)
OTHERS: tuple[Callable[[Values], View], ...] = (
    lambda v: v.chosen(v.is_best(), v.number(), PARTS * LENGTH - 2),
    lambda v: v.chosen(v.is_best(), v.number(), v.leaf("u")),
    lambda v: v.chosen(v.is_best(), v.number(LENGTH - 1)),
    lambda v: v.chosen(v.is_best(), v.number(-LENGTH)),
    lambda v: v.chosen(v.is_best(), v.place),
    lambda v: v.chosen(v.is_best(), v.number(LENGTH, 0, v.b.scale(v.place, 2))),
    lambda v: v.chosen(v.is_best(), v.number(LENGTH, 0, v.leaf("u"))),
    lambda v: v.chosen(v.is_best(), v.b.add(v.number(), v.leaf("u"))),
    lambda v: v.chosen(negate(v.b.pool, v.is_best()), v.number()),
    lambda v: v.chosen(_bound(v, less, inner=True), v.number()),
    lambda v: v.chosen(_bound(v, less_equal, inner=True), v.number()),
    lambda v: v.chosen(_bound(v, less, inner=False), v.b.full(99, SHAPE), v.number()),
    lambda v: v.chosen(equal(v.b.pool, v.leaf("u"), v.of_all), v.number()),
    lambda v: v.chosen(equal(v.b.pool, v.of_part, v.best(v.leaf("u"))), v.number()),
    lambda v: v.chosen(equal(v.b.pool, v.of_part, v.leaf("u")), v.number()),
    lambda v: v.chosen(v.is_best(), v.number()).scaled(Fraction(2)),
)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize(("make", "is_one"), [*((make, True) for make in RIGHT), *((make, False) for make in OTHERS)])
def test_least_number_of_the_best(make: Callable[[Values], View], is_one: bool, kind: str) -> None:
    values = Values(kind)
    view = make(values)
    least = reduce_extreme(values.b.pool, view, [1], "min")
    named = any(name == "first-of-best" for name, _ in values.b.pool.lemma_trace)
    assert named is (is_one or view.coefficient == 2)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        sizes = {"t": (*SHAPE, LENGTH), "u": SHAPE}
        numbers = {name: torch.randint(-1, 2, size, generator=generator).double() for name, size in sizes.items()}
        evaluator = Evaluator(numbers)
        torch.testing.assert_close(evaluator.view(least), evaluator.view(view).amin(1))


def test_other_kinds_and_dimensions_are_left_alone() -> None:
    values = Values("max")
    view = values.chosen(values.is_best(), values.number())
    for kind, dims in (("max", [1]), ("min", [0]), ("min", [0, 1])):
        reduce_extreme(values.b.pool, view, dims, kind)
    reduce_extreme(values.b.pool, values.number(), [1], "min")
    assert not any(name == "first-of-best" for name, _ in values.b.pool.lemma_trace)
