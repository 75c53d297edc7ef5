"""What must hold of places of extremes among parts, as checks that its mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir.algebra import iota
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import equal, less_equal
from verifycompile.ir.relabel import permute, remove_dim
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.extreme_places import ARG_EXTREME, place, reduced
from verifycompile.rewrites.operators.reduction import reduce_extreme
from verifycompile.rewrites.parts.places import places_in_parts

ROWS, PARTS, LENGTH = 2, 4, 3
SIZES = {
    "t": (ROWS, PARTS, LENGTH),
    "u": (ROWS, PARTS, LENGTH),
    "r": (ROWS,),
    "square": (ROWS, PARTS, PARTS),
    "deep": (ROWS, PARTS, 2, LENGTH),
}


class Values:
    """A table of equal parts. ``upper``: the first part with the largest element; ``places``: in each part."""

    def __init__(self, name: str = "t", kind: str = "max") -> None:
        self.b = Builder(TermPool())
        self.kind = kind
        self.table = self.leaf(name)
        self.upper, self.places = self.upper_of(self.table), self.place(self.table, 2)

    def leaf(self, name: str) -> View:
        return self.b.pool.leaf(name, SIZES[name])

    @property
    def extremes(self) -> View:
        return reduce_extreme(self.b.pool, self.table, [2], self.kind)

    def place(self, view: View, dim: int, kind: str = "") -> View:
        return place(self.b, kind or self.kind, view, dim, False)

    def upper_of(self, table: View, kind: str = "", inner: str = "") -> View:
        return self.place(reduce_extreme(self.b.pool, table, [2], inner or self.kind), 1, kind)

    def counter(self, factor: int = 1, start: int = 0) -> View:
        parts = self.b.pool
        counted = self.b.add(self.b.scale(iota(parts, PARTS), factor), start)
        return self.b.expand(self.b.unsqueeze(counted, 0), (ROWS, PARTS))

    def behind(self) -> View:
        """The number of a part behind as many others."""
        axis = ((CONSTANT, 1, 2), (1, 1, PARTS))
        return View(ONE, iota(self.b.pool, 2 * PARTS).term, (ROWS, PARTS), (axis,))

    def mask(self, number: View, counter: View | None = None, compare: Callable[..., View] = equal) -> View:
        wide = self.b.expand(self.b.unsqueeze(number, 1), (ROWS, PARTS))
        return compare(self.b.pool, wide, self.counter() if counter is None else counter)

    def lower(self, number: View | None = None, places: View | None = None, *more: View) -> View:
        """What stands at a place among the parts."""
        mask = self.mask(self.upper if number is None else number)
        return self.read(mask, self.places if places is None else places, *more)

    def read(self, *factors: View) -> View:
        return self.b.contraction(f"{', '.join(['r p'] * len(factors))} -> r", *factors)


_Made = Callable[[], tuple[Values, Sequence[View], bool]]
"""Summands, and whether two of them become the place in the whole."""


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, made in enumerate((*_right(), *_others())):
        yield f"places {number}", functools.partial(_becomes, made)


def _becomes(made: _Made) -> None:
    values, summands, joined = made()
    found = places_in_parts(values.b.pool, summands, (ROWS,))
    assert (found is not None) is joined
    if found is None:
        return
    assert len(found) == len(summands) - 1
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        numbers = {
            name: torch.randint(-1, 2, shape, generator=generator).double() for name, shape in SIZES.items()
        }  # few numbers, so that several are the largest
        before, after = (sum(map(Evaluator(numbers).view, views)) for views in (summands, found))
        torch.testing.assert_close(before, after)


def _row(make: Callable[[Values], Sequence[View]], joined: bool, kind: str = "max", name: str = "t") -> _Made:
    def made() -> tuple[Values, Sequence[View], bool]:
        values = Values(name, kind)
        return values, make(values), joined

    return made


def _right() -> Iterator[_Made]:
    for kind in ("max", "min"):
        yield _row(lambda v: [v.upper.scaled(LENGTH), v.lower()], True, kind)
        yield _row(lambda v: [v.lower(), v.upper.scaled(LENGTH)], True, kind)
    yield _row(lambda v: [v.leaf("r"), v.upper.scaled(3 * LENGTH), v.lower().scaled(3)], True)
    yield _row(lambda v: [v.upper, v.upper.scaled(LENGTH), v.lower()], True)
    yield _row(lambda v: [v.upper.scaled(PARTS), v.lower()], True, name="square")
    yield _row(lambda v: [v.upper.scaled(LENGTH), v.read(v.places, v.mask(v.upper))], True)


def _others() -> Iterator[_Made]:
    right: Callable[[Values], View] = lambda v: v.upper.scaled(LENGTH)  # noqa: E731 - a name for one summand
    for factor in (1, LENGTH - 1, -LENGTH, PARTS):
        yield _row(lambda v, factor=factor: [v.upper.scaled(factor), v.lower()], False)
    yield _row(lambda v: [right(v), v.lower().scaled(2)], False)
    yield _row(lambda v: [right(v)], False)
    yield _row(lambda v: [right(v), v.leaf("r")], False)
    # Of another table, or of another kind of extreme.
    yield _row(lambda v: [v.upper_of(v.leaf("u")).scaled(LENGTH), v.lower()], False)
    yield _row(lambda v: [right(v), v.lower(places=v.place(v.leaf("u"), 2))], False)
    yield _row(lambda v: [right(v), v.lower(places=v.place(v.table, 2, "min"))], False)
    yield _row(lambda v: [right(v), v.lower(places=v.place(v.table.scaled(-1), 2))], False)
    yield _row(lambda v: _both(v, v.upper_of(v.table, "min")), False)
    yield _row(lambda v: _both(v, v.upper_of(v.table, "max", "min")), False)
    yield _row(lambda v: _both(v, v.upper_of(v.table.scaled(-1))), False)
    turned: Callable[[Values], View] = lambda v: permute(v.leaf("square"), (0, 2, 1))  # noqa: E731 - a name for one view
    yield _row(lambda v: [v.upper.scaled(PARTS), v.lower(places=v.place(turned(v), 2))], False, name="square")
    # No extreme of the parts, one of more than a part, and a multiple of one.
    yield _row(lambda v: _both(v, v.place(v.b.sum(v.table, [2]), 1)), False)
    yield _row(lambda v: _both(v, v.place(v.b.select(v.table, 2, 0), 1)), False)
    yield _row(
        lambda v: _both(v, reduced(v.b, ARG_EXTREME["max"], (), v.extremes.scaled(Fraction(-1)), 1, False)), False
    )
    yield _row(_of_places_in_two_dimensions, False)
    # Read at another part, by another mask, or something else there.
    other: Callable[[Values], View] = lambda v: v.upper_of(v.leaf("u"))  # noqa: E731 - a name for one value
    yield _row(lambda v: [right(v), v.lower(other(v))], False)
    yield _row(lambda v: [right(v), v.lower(v.leaf("r"))], False)
    for factor, start in ((1, 1), (2, 0), (-1, 0)):
        yield _row(lambda v, f=factor, s=start: [right(v), v.read(v.mask(v.upper, v.counter(f, s)), v.places)], False)
    yield _row(lambda v: [right(v), v.read(v.mask(v.upper, v.behind()), v.places)], False)
    yield _row(lambda v: [right(v), v.read(v.mask(v.upper, compare=less_equal), v.places)], False)
    yield _row(lambda v: [right(v), _sum_of_larger(v)], False)
    yield _row(lambda v: [right(v), v.read(v.mask(v.b.scale(v.upper, 2)), v.places)], False)
    yield _row(lambda v: [right(v), v.lower(None, v.b.scale(v.places, 2))], False)
    yield _row(lambda v: [right(v), v.lower(None, v.b.select(v.table, 2, 0))], False)
    yield _row(lambda v: [right(v), v.lower(None, None, v.b.select(v.table, 2, 0))], False)
    yield _row(lambda v: [right(v), v.b.sum(v.places, [1])], False)
    yield _row(lambda v: [right(v), v.b.select(v.places, 1, 0)], False)


def _both(values: Values, upper: View) -> list[View]:
    """The place in the whole as if ``upper`` were the part."""
    return [upper.scaled(LENGTH), values.lower(upper)]


def _of_places_in_two_dimensions(values: Values) -> list[View]:
    """The place of what is largest over two dimensions, taken for one over the last."""
    deep = values.leaf("deep")
    extremes = reduce_extreme(values.b.pool, deep, [2, 3], "max")
    labels = tuple(range(4))
    signature = Signature((labels,), (0, 1, "fresh"), frozenset(), (labels[2:],), {"fresh": 1})
    places = remove_dim(apply(values.b.pool, ARG_EXTREME["max"], (), (deep,), signature), 2)
    upper = values.place(extremes, 1)
    return [upper.scaled(LENGTH), values.lower(upper, places)]


def _sum_of_larger(values: Values) -> View:
    """The sum of the larger of a mask and a place, which is no product."""
    labels = (0, 1)
    signature = Signature((labels, labels), (0,), frozenset({1}), (), {})
    return apply(values.b.pool, MAXIMUM, (), (values.mask(values.upper), values.places), signature)
