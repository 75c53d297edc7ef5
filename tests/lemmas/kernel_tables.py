"""Guards, readings and buildings one by one, with what each must say: what no lemma of today tells apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy

from tests.lemmas.conditions import Check
from verifycompile.ir.algebra import INFINITY, combine, contract, elementwise, iota, multiply_views
from verifycompile.ir.exponential import EXPONENTIAL, MAXIMUM, POWER, REDUCE_MAX
from verifycompile.ir.indicator import LESS, equal, less
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, IndexFact, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.lemmas.build import build, build_product
from verifycompile.rewrites.lemmas.dispose import dispose
from verifycompile.rewrites.lemmas.guards import is_met
from verifycompile.rewrites.lemmas.indicators import LOOK_UP
from verifycompile.rewrites.lemmas.lemma import Guard, Lemma, Pattern
from verifycompile.rewrites.lemmas.products import OPEN_SUM
from verifycompile.rewrites.lemmas.read import Reader
from verifycompile.rewrites.lemmas.substitution import InProduct, InSum, Position, Substitution
from verifycompile.rewrites.operations import SLIDING_WINDOW
from verifycompile.rewrites.operators.extreme_places import ARG_EXTREME

SHAPE = (3, 3, 3, 3)
"""Dimensions 0 and 1 are free; 2 and 3 may be bound."""


class Space:
    """A pool, and values over one index space."""

    def __init__(self, shape: tuple[Any, ...] = SHAPE) -> None:
        self.pool, self.shape = TermPool(), shape
        self.x, self.y, self.z = (self.leaf(name, 0) for name in "xyz")

    def leaf(self, name: str, *dims: int, **kinds: bool) -> View:
        return self.at(self.pool.leaf(name, tuple(self.shape[d] for d in dims), **kinds), *dims)

    def at(self, view: View, *dims: int) -> View:
        axes = tuple(((d, 1, self.shape[d]),) for d in dims)
        return View(view.coefficient, view.term, self.shape, axes)

    def counter(self, *dims: int) -> View:
        size = 1
        for d in dims:
            size *= self.shape[d]
        counter = iota(self.pool, size)
        return View(ONE, counter.term, self.shape, (tuple((d, 1, self.shape[d]) for d in dims),))

    def number(self, value: int) -> View:
        return self.pool.constant(ONE * value, self.shape)

    def of(self, operation: Any, *views: View, attributes: tuple[Any, ...] = ()) -> View:
        return elementwise(self.pool, operation, attributes, views)

    def index(self, *facts: IndexFact) -> View:
        """An index of which something is known."""
        found = self.leaf("n", 0, whole=True)
        self.pool.facts = {found.term: facts}
        return found

    def infinity(self) -> View:
        term = self.pool.intern(INFINITY, (), (), (), 0, 0, (), ())
        return View(-ONE, term, self.shape, ())

    def summed(self, view: View, *dims: int) -> View:
        """The sum over dimensions, over the others as they are numbered."""
        labels = tuple(range(len(self.shape)))
        kept = tuple(d for d in labels if d not in dims)
        found = contract(self.pool, [view], (labels,), kept, frozenset(dims))
        axes = tuple(tuple((kept[d], low, size) for d, low, size in axis) for axis in found.axes)
        return View(found.coefficient, found.term, tuple(self.shape[d] for d in kept), axes)


def _given(
    values: Mapping[str, Sequence[View]] | None = None, numbers: Mapping[str, Any] | None = None, **more: Any
) -> Substitution:
    return Substitution(
        {name: tuple(views) for name, views in (values or {}).items()},
        {name: Fraction(number) for name, number in (numbers or {}).items()},
        **more,
    )


def table() -> Iterator[tuple[str, Check]]:
    for name, family in (
        ("guard", _guards()),
        ("reading", _readings()),
        ("building", _buildings()),
        ("step", _steps()),
    ):
        for number, check in enumerate(family):
            yield f"{name} {number}", check


# ------------------------------------------------------------------------------------------------ guards


def _guards() -> Iterator[Check]:
    for space, guard, given, expected in _guard_rows():
        yield functools.partial(_says, space, guard, given, expected)


def _says(space: Space, guard: Guard, given: Substitution, expected: bool) -> None:
    assert is_met(space.pool, guard, space.shape, given) is expected, (guard, expected)


def _guard_rows() -> Iterator[tuple[Space, Guard, Substitution, bool]]:
    s = Space()
    independent = ("independent", "a", "j")
    one, other = s.leaf("one", 0), s.leaf("other", 1)
    for views, dims, expected in (
        ([one], (0,), False), ([one], (1,), True), ([one, other], (0,), False), ([other], (0, 1), False),
        ([other], (2, 3), True),
    ):  # fmt: skip
        yield s, independent, _given({"a": views}, indices={"j": dims}), expected
    yield s, independent, _given({"a": [one]}), True
    yield s, independent, _given(each={"a": ((one,), (other,))}), False
    for kind, right, wrong in (
        ("indicator", s.leaf("m", 0, indicator=True), one), ("finite", one, s.infinity()),
        ("positive", s.of(EXPONENTIAL, one), one),
    ):  # fmt: skip
        yield s, (kind, "a"), _given({"a": [right, right]}), True
        yield s, (kind, "a"), _given({"a": [right, wrong]}), False
        yield s, (kind, "a"), _given(each={"a": ((right,), (right,))}), True
        yield s, (kind, "a"), _given(each={"a": ((right,), (wrong,))}), False
    square = multiply_views(s.pool, one, one)
    yield s, ("positive", "a"), _given({"a": [combine(s.pool, [square, s.number(1)])]}), True
    yield s, ("positive", "a"), _given({"a": [square]}), False
    mask = s.leaf("mask", 1, indicator=True)
    under, free = (s.of(EXPONENTIAL, view) for view in (multiply_views(s.pool, mask, one), one))
    for view, plain, expected in ((under, free, True), (under, under, False), (one, one, True), (one, free, False)):
        yield s, ("beside", "m", "a", "b"), _given({"m": [mask], "a": [view], "b": [plain]}), expected
    elsewhere = s.of(EXPONENTIAL, multiply_views(s.pool, s.leaf("mask", 0, indicator=True), one))
    yield s, ("beside", "m", "a", "b"), _given({"m": [mask], "a": [elsewhere], "b": [free]}), False
    masked = combine(s.pool, [one, multiply_views(s.pool, mask, s.infinity())])
    for view, expected in ((combine(s.pool, [one, other]), True), (s.infinity(), True), (masked, False)):
        yield s, ("number", "a"), _given({"a": [view]}), expected
    for low, high, expected in ((1, 2, True), (2, 2, True), (3, 2, False)):
        yield s, ("ordered", "p", "q"), _given(numbers={"p": low, "q": high}), expected
    twice = s.counter(0).scaled(ONE * 2)
    for view, expected in ((s.counter(0), True), (s.number(0), True), (one, False), (twice, False)):
        yield s, ("whole", "a"), _given({"a": [view]}), expected
    for view, radix, expected in (
        (s.counter(0), 3, True), (s.counter(0), 4, False), (s.number(0), 1, True), (s.number(0), 2, False),
        (one, 3, False), (one, 1, False), (twice, 3, False),
    ):  # fmt: skip
        yield s, ("digit", "a", "q"), _given({"a": [view]}, {"q": radix}), expected
    yield from _within()
    yield from _known()
    yield from _windows()


def _within() -> Iterator[tuple[Space, Guard, Substitution, bool]]:
    s = Space()
    within = ("within", "n", "j")
    for view, expected in (
        (s.counter(0), True), (s.counter(0).scaled(ONE * 2), False), (s.counter(0, 1), False), (s.leaf("a", 0), False),
    ):  # fmt: skip
        yield s, within, _given({"n": [view]}, indices={"j": (2,)}), expected
    yield s, within, _given({"n": [s.counter(0, 1)]}, indices={"j": (2, 3)}), True
    for length, factor, expected in ((3, 1, True), (3, 2, False), (2, 1, False), (4, 1, False)):
        b = Builder(s.pool)
        place = b.along(ARG_EXTREME["max"], (), s.pool.leaf("table", (3, length)), 1, 1).scaled(ONE * factor)
        yield s, within, _given({"n": [place]}, indices={"j": (2,)}), expected
    for exception, size, expected in (
        (None, 3, True), (None, 2, True), (None, 4, False), (-100, 3, False), (0, 3, True), (2, 3, True), (3, 3, False),
        (-1, 3, False), (0, 4, False),
    ):  # fmt: skip
        s = Space()
        index = s.index(IndexFact(exception, size, "a test"))
        yield s, within, _given({"n": [index]}, indices={"j": (2,)}), expected
        yield s, within, _given({"n": [index.scaled(ONE * 2)]}, indices={"j": (2,)}), False
    s = Space((4, 3, 3, 3))  # as many elements as there are positions says nothing
    yield s, within, _given({"n": [s.index(IndexFact(None, 3, "a test"))]}, indices={"j": (2,)}), True
    s = Space()  # what is known of one part of a value is known of what lies in it alone
    whole = s.pool.leaf("parts", (3, 4, 2), whole=True)
    s.pool.facts = {whole.term: (IndexFact(None, 3, "a test", frozenset({(1, 2, 1, 2)})),)}
    for digits, expected in (
        (((CONSTANT, 1, 2), (1, 1, 2)), True), (((CONSTANT, 0, 2), (1, 1, 2)), False), (((1, 1, 4),), False),
        (((1, 1, 2), (CONSTANT, 1, 2)), False),
    ):  # fmt: skip
        view = View(ONE, whole.term, (3, 4, 3), (((0, 1, 3),), digits, ((CONSTANT, 1, 2),)))
        yield s, within, _given({"n": [view]}, indices={"j": (2,)}), expected
    for factor, size, expected in ((1, 6, True), (1, 5, False), (Fraction(1, 2), 6, False), (Fraction(1, 2), 3, False)):
        s = Space((3, 3, size, 3))  # half of a whole number need not be a position, wherever it lies
        b, index = Builder(s.pool), s.index(IndexFact(None, 3, "a test"))
        view = b.combination((1, s.counter(1)), (factor, index), (1, 1))
        yield s, within, _given({"n": [view]}, indices={"j": (2,)}), expected
    unknown = sympy.Symbol("s", integer=True, positive=True)
    s = Space((3, 3, unknown, 3))
    index = s.index(IndexFact(None, 3, "a test"), IndexFact(-1, 3, "a test"))
    yield s, within, _given({"n": [index]}, indices={"j": (2,)}), False
    within_or = ("within_or", "n", "j", "p")
    yield s, within_or, _given({"n": [index]}, {"p": -1}, indices={"j": (2,)}), False
    for exception, number, size, expected in (
        (-100, -100, 3, True), (-100, -1, 3, False), (None, -1, 3, False), (-100, -100, 4, False), (-100, -100, 2, True),
        (0, 0, 3, False), (2, 2, 3, False), (3, 3, 3, True), (-1, -1, 3, True),
    ):  # fmt: skip
        s = Space()
        index = s.index(IndexFact(7, 2, "another"), IndexFact(exception, size, "a test"))
        yield s, within_or, _given({"n": [index]}, {"p": number}, indices={"j": (2,)}), expected
        yield s, within_or, _given({"n": [index.scaled(ONE * 2)]}, {"p": number}, indices={"j": (2,)}), False


def _known() -> Iterator[tuple[Space, Guard, Substitution, bool]]:
    for limit, size, expected in ((3, 3, True), (2, 3, False)):
        s = Space()
        mask = less(s.pool, s.index(IndexFact(None, size, "a test")), s.number(limit))
        yield s, ("known", "m"), _given({"m": [mask]}), expected
    s = Space()  # what holds for all positions is known without saying more of an index
    for limit, expected in ((3, True), (2, False)):
        yield s, ("known", "m"), _given({"m": [s.of(LESS, s.counter(0), s.number(limit))]}), expected
    yield s, ("known", "m"), _given({"m": [s.leaf("m", 0, indicator=True)]}), False
    for facts, expected in (
        ((IndexFact(-1, 3, "a test"),), True), ((), False), ((IndexFact(-1, 3, "a test"), IndexFact(-2, 3, "another")), True),
        ((IndexFact(-2, 3, "a test"),), False),
    ):  # fmt: skip
        s = Space()
        index = s.index(*facts)
        negative, exception = less(s.pool, index, s.number(0)), equal(s.pool, index, s.number(-1))
        yield s, ("equivalent", "m", "n"), _given({"m": [negative], "n": [exception]}), expected
        yield s, ("implies", "m", "n"), _given({"m": [negative], "n": [exception]}), expected
        yield s, ("implies", "m", "n"), _given({"m": [exception], "n": [negative]}), True


def _windows() -> Iterator[tuple[Space, Guard, Substitution, bool]]:
    s = Space()
    term = s.pool.intern(SLIDING_WINDOW, (1, 0, 1), (), (3, 2, 3), 3, 0, (), (0, 1, 2))
    matrix = View(ONE, term, s.shape, (((2, 1, 3),), ((CONSTANT, 1, 2),), ((3, 1, 3),)))
    reads = ("reads", "m", "w", "p", "q", "x", "b", "c", "f", "g")
    dims = {"w": (2,), "x": (3,)}
    for numbers, expected in (
        ((0, 1, 0, 2, 0, 3), True), ((0, 1, 0, 1, 0, 3), False), ((0, 3, 0, 3, 0, 3), True), ((0, 4, 0, 3, 0, 3), False),
        ((1, 1, 0, 3, 0, 3), False), ((-1, 1, 0, 3, 0, 3), False), ((Fraction(1, 2), 2, 0, 3, 0, 3), False),
    ):  # fmt: skip
        yield s, reads, _given({"m": [matrix]}, dict(zip("pqbcfg", numbers, strict=True)), indices=dims), expected
    whole = dict(zip("pqbcfg", (0, 3, 0, 3, 0, 3), strict=True))
    yield s, reads, _given({"m": [matrix]}, whole, indices={"w": (3,), "x": (2,)}), False
    yield s, reads, _given({"m": [s.leaf("m", 2, 1, 3)]}, whole, indices=dims), False


# ------------------------------------------------------------------------------------------------ readings


def _readings() -> Iterator[Check]:
    for space, pattern, views, given, expected in _reading_rows():
        yield functools.partial(_is_read, space, pattern, views, given, expected)
    for space, patterns, views, given, expected in _sum_rows():
        yield functools.partial(_is_summed, space, patterns, views, given, expected)


def _is_read(space: Space, pattern: Pattern, views: Sequence[View], given: Substitution, expected: int | None) -> None:
    assert Reader(space.shape[: views[0].rank]).product([pattern], views, given) == expected, (pattern, expected)


def _is_summed(
    space: Space, patterns: Sequence[Pattern], views: Sequence[View], given: Substitution, expected: bool
) -> None:
    assert Reader(space.shape).sum(patterns, views, given) is expected, (patterns, expected)


_Row = tuple[Space, Pattern, Sequence[View], Substitution, int | None]


def _reading_rows() -> Iterator[_Row]:
    s = Space()
    x, y = s.x, s.y
    moved = s.at(s.pool.leaf("x", (3,)), 1)
    two = s.number(2)
    given = _given({"a": [x], "b": [y], "z": [s.number(0)]}, {"p": 2, "q": 3, "o": 1, "n": 0})
    yield from (
        (s, "a", [x, two], given, 2), (s, "a", [moved], given, None), (s, "a", [x, y], given, None),
        (s, "z", [s.number(0)], given, None), (s, ("scale", "n", "a"), [x.scaled(ONE * 0)], given, None),
        (s, ("scale", ("times", "p", "q"), "a"), [x.scaled(ONE * 6)], given, 1),
        (s, ("scale", ("plus", "p", "q"), "a"), [x.scaled(ONE * 5)], given, 1),
        (s, ("mul", ("one",), "a"), [x], given, 1), (s, ("power", "o", "a"), [x], given, 1),
        (s, ("power", "p", "a"), [s.of(POWER, x, attributes=(ONE * 2,))], given, 1),
        (s, ("power", "q", "a"), [s.of(POWER, x, attributes=(ONE * 2,))], given, None),
        (s, ("power", "p", "a"), [s.of(AT_MOST, x, attributes=(2,))], given, None),
        (s, ("less", "a", "b"), [s.of(LESS, x, y)], given, 1), (s, ("less", "a", "b"), [s.of(LESS, y, x)], given, None),
        (s, ("add", "a", "b"), [combine(s.pool, [x, y])], given, 1),
        (s, ("add", "a", "b"), [s.of(MAXIMUM, x, y)], given, None),
    )  # fmt: skip
    yield from _counters()
    yield from _sums()


def _counters() -> Iterator[_Row]:
    s = Space()
    given = _given({"a": [s.counter(2)], "c": [s.counter(3)], "e": [s.leaf("e", 3)], "z": [s.number(0)]},
                   {"q": 3, "o": 1, "t": 4}, indices={"i": (2,), "j": (2, 3)})  # fmt: skip
    spelled = s.counter(2, 3)
    leaf = s.leaf("l", 2)
    yield from (
        (s, ("place", "i"), [s.counter(2)], given, 1), (s, ("place", "i"), [s.counter(1)], given, None),
        (s, ("place", "i"), [leaf], given, None), (s, ("place", "j"), [spelled], given, 1),
        (s, ("spell", "q", "a", "c"), [spelled], given, 1), (s, ("spell", "t", "a", "c"), [spelled], given, None),
        (s, ("spell", "q", "c", "a"), [spelled], given, None), (s, ("spell", "q", "e", "c"), [spelled], given, None),
        (s, ("spell", "q", "a", "e"), [spelled], given, None), (s, ("spell", "q", "z", "c"), [s.counter(3)], given, 1),
        (s, ("spell", "q", ("place", "i"), "c"), [spelled], given, 1),
        (s, ("spell", "o", "a", "z"), [leaf], given, None), (s, ("spell", "q", "a", "c"), [s.leaf("l", 2, 3)], given, None),
    )  # fmt: skip


def _sums() -> Iterator[_Row]:
    """Sums and maxima over what is bound: the indices that stand for them are those, and no others."""
    s = Space((3, 3, 3))
    inner = s.leaf("a", 0, 2)
    total = s.summed(inner, 2)
    given = _given({"a": [inner]}, indices={"i": (2,), "k": (0,), "e": ()})
    yield s, ("sum", "i", "a"), [total], given, 1
    yield s, ("sum", "k", "a"), [total], given, None
    yield s, ("sum", "e", "a"), [total], given, None
    largest = s.pool.intern(REDUCE_MAX, (), (inner,), (3, 3), 1, 1, (), ())
    spelled = dataclasses.replace(inner, axes=(((0, 1, 3),), ((1, 1, 3),)))
    largest = s.pool.intern(REDUCE_MAX, (), (spelled,), (3, 3), 1, 1, (), ())
    yield s, ("sum", "i", "a"), [View(ONE, largest, (3, 3), (((0, 1, 3),),))], given, None
    wide, wider = Space((3, 3, 4)), (3, 3, 5)
    first = wide.leaf("a", 0, 2)
    other = View(ONE, wide.pool.leaf("b", (3, 5)).term, wider, (((0, 1, 3),), ((2, 1, 5),)))
    labels = (0, 1, 2)
    sums = [contract(wide.pool, [v], (labels,), labels[:2], frozenset((2,))) for v in (first, other)]
    given = _given({"a": [first], "b": [other]}, indices={"i": (2,)})
    yield wide, ("mul", ("sum", "i", "a"), ("sum", "i", "b")), sums, given, None
    # Two sums over two indices each, of which one has another size.
    pool = wide.pool
    square = View(ONE, pool.leaf("c", (3, 4, 5)).term, (3, 4, 5), (((0, 1, 3),), ((1, 1, 4),), ((2, 1, 5),)))
    oblong = View(ONE, pool.leaf("d", (3, 4, 6)).term, (3, 4, 6), (((0, 1, 3),), ((1, 1, 4),), ((2, 1, 6),)))
    sums = [contract(pool, [v], (labels,), labels[:1], frozenset((1, 2))) for v in (square, oblong)]
    given = _given({"c": [square], "d": [oblong]}, indices={"i": (1,), "j": (2,)})
    pattern = ("mul", ("sum", "i", ("sum", "j", "c")), ("sum", "i", ("sum", "j", "d")))
    yield wide, pattern, sums, given, None


def _sum_rows() -> Iterator[tuple[Space, Sequence[Pattern], Sequence[View], Substitution, bool]]:
    s = Space()
    x, y, z = s.x, s.y, s.z
    m = s.leaf("m", 1)
    each = _given({"m": [m]}, each={"a": ((x,), (y,))})
    parts: list[Pattern] = [("each", "k", "a")]
    masked: list[Pattern] = [("each", "k", ("mul", "m", "a"))]
    both: list[Pattern] = [("each", "k", ("mul", "a", "b"))]
    product = multiply_views(s.pool, x, y)
    written = combine(s.pool, [x, y])
    yield from (
        (s, parts, [x, y], each, True), (s, parts, [y, x], each, True), (s, parts, [x], each, False),
        (s, parts, [x, x], each, False), (s, parts, [x, y, z], each, False), (s, [*parts, "m"], [x, y], each, False),
        (s, parts, [product, z], _given(each={"a": ((x, y), (z,))}), False),
        (s, parts, [x, y, z], _given(each={"a": ((x, y), (z,))}), False),
        (s, parts, [product, z], _given(each={"a": ((product,), (z,))}), True),
        (s, parts, [x.scaled(ONE * 2), y], _given(each={"a": ((x, s.number(2)), (y,))}), True),
        (s, parts, [x.scaled(ONE * 2), y], _given(each={"a": ((x.scaled(ONE * 2),), (y,))}), True),
        (s, parts, [x, y, z], _given(each={"a": ((written,), (z,))}), True),
        (s, parts, [x.scaled(ONE * 2), y.scaled(ONE * 2), z],
         _given(each={"a": ((written.scaled(ONE * 2),), (z,))}), True),
        (s, parts, [x], _given(each={"a": ((x,), ())}), False), (s, parts, [], _given(each={"a": ((), ())}), False),
        (s, parts, [s.number(1), x], _given(each={"a": ((s.number(1),), (x,))}), True),
        (s, masked, [multiply_views(s.pool, m, v) for v in (x, y)], each, True),
        (s, masked, [multiply_views(s.pool, m, v) for v in (y, x)], each, False),
        (s, masked, [multiply_views(s.pool, m, x)], each, False),
        (s, masked, [multiply_views(s.pool, m, v) for v in (x, y, z)], each, False),
        (s, masked, [multiply_views(s.pool, m, x), y], each, False),
        (s, both, [multiply_views(s.pool, x, m)], _given(each={"a": ((x,),), "b": ((m,), (m,))}), False),
        (s, [("exp", "m")], [s.of(EXPONENTIAL, m)], each, True), (s, ["m"], [m], each, True),
        (s, ["m"], [m, x], each, False),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ buildings


def _buildings() -> Iterator[Check]:
    s = Space()
    product = multiply_views(s.pool, s.x, s.y)

    def refuse(*_: object) -> None:
        raise AssertionError("a value is built as it is")

    s.pool.contraction_rules.append(refuse)
    given = _given(
        {"a": [s.x], "c": [s.counter(3)], "u": [s.counter(2)], "e": [s.leaf("e", 3)], "z": [s.number(0)],
         "l": [s.leaf("l", 0, 2)], "t": [s.counter(2).scaled(ONE * 2)], "o": [s.counter(1)],
         "w": [s.counter(1, 0)], "xy": [product]},
        {"p": 2, "q": 3, "n": 0, "s": 1}, indices={"i": (2,), "j": (2, 3), "k": (0, 2)},
    )  # fmt: skip
    power = s.of(POWER, s.x, attributes=(ONE * 2,))
    rows: list[tuple[Pattern, View]] = [
        ("a", s.x), ("xy", product), (("scale", "p", ("one",)), s.number(2)), (("scale", "p", "a"), s.x.scaled(ONE * 2)),
        (("one",), s.number(1)), (("range", "i", "n", "q"), s.number(1)), (("place", "i"), s.counter(2)),
        (("spell", "q", "u", "c"), s.counter(2, 3)), (("spell", "s", "z", "z"), s.number(0)), (("exp", "z"), s.number(1)),
        (("power", "n", "a"), s.number(1)), (("power", "s", "a"), s.x), (("power", "p", "a"), power),
        (("at", "a", "i", "e"), s.x), (("at", "l", "i", "o"), s.at(s.pool.leaf("l", (3, 3)), 0, 1)),
        (("at", "l", "j", "w"), s.at(s.pool.leaf("l", (3, 3)), 0, 1)),
    ]  # fmt: skip
    for pattern, expected in rows:
        yield functools.partial(_is_built, s, pattern, given, expected)
    plain = Space()
    yield functools.partial(_is_count, plain)
    for pattern in (("spell", "q", "e", "c"), ("at", "l", "i", "e"), ("at", "l", "i", "t"), ("at", "l", "k", "e")):
        yield functools.partial(_is_not_built, s, pattern, given)


def _is_built(space: Space, pattern: Pattern, given: Substitution, expected: View) -> None:
    assert build(space.pool, pattern, space.shape, given) == expected, pattern


def _is_count(space: Space) -> None:
    (found,) = build_product(space.pool, ("sum", "i", ("one",)), space.shape, _given(indices={"i": (2,)}))
    assert (found.term, found.coefficient) == (space.pool.unit, 3)


def _is_not_built(space: Space, pattern: Pattern, given: Substitution) -> None:
    try:
        build(space.pool, pattern, space.shape, given)
    except UnalignedError:
        return
    raise AssertionError(pattern)


# ------------------------------------------------------------------------------------------------ steps


def _lemma(left: Pattern, right: Pattern, *guards: Guard) -> Lemma:
    return Lemma("VL00", "of a test", "a law of a test, which may be none", left, right, guards)


def _steps() -> Iterator[Check]:
    for space, lemma, given, position, expected in _step_rows():
        yield functools.partial(_is_disposed, space, lemma, given, position, expected)


def _is_disposed(
    space: Space, lemma: Lemma, given: Substitution, position: Position, expected: Sequence[View] | int | None
) -> None:
    """``expected``: the views but for a number that is one, or of how many dimensions they are; None for no step."""
    found = dispose(space.pool, lemma, given, position)
    if isinstance(expected, int):
        assert found is not None
        assert {view.rank for view in found} == {expected}
        return
    plain = None if found is None else [v for v in found if v.term is not space.pool.unit or v.coefficient != 1]
    assert plain == expected, lemma


def _step_rows() -> Iterator[tuple[Space, Lemma, Substitution, Position, Sequence[View] | int | None]]:
    s = Space((3, 3, 3))
    place, x = s.counter(2), s.leaf("a", 2)

    def equal(left: View, right: View) -> View:
        from verifycompile.ir.indicator import EQUAL

        return s.of(EQUAL, left, right)

    # One dimension is two digits of an index.
    twice = View(ONE, iota(s.pool, 9).term, s.shape, (((2, 1, 3), (2, 1, 3)),))
    number = View(ONE, iota(s.pool, 9).term, s.shape, (((0, 1, 3), (1, 1, 3)),))
    factors = [equal(number, twice), x]
    yield s, LOOK_UP, _given({"n": [number], "a": [x]}, indices={"j": (2, 2)}), InProduct(factors, 2, factors), None
    # Two indices that are one dimension.
    yield s, OPEN_SUM, _given({"f": [x], "a": [x]}, indices={"j": (2,), "l": (2,)}), InProduct([x], 2, [x]), None
    # Sums that are equal while their summands are not: another factor must not read the index.
    first, other = s.counter(0), s.counter(1)
    counted = _lemma(("sum", "j", ("equal", "n", ("place", "j"))), ("sum", "j", ("equal", "m", ("place", "j"))))
    given = _given({"n": [first], "m": [other]}, indices={"j": (2,)})
    mask = equal(first, place)
    yield s, counted, given, InProduct([mask, x], 2, [mask]), None
    yield s, counted, given, InProduct([mask, s.x], 2, [mask]), [s.x, equal(other, place)]
    # A dimension that is summed on the right must have been summed on the left, or be a new one.
    back = _lemma(("sum", "i", "a"), ("sum", "i", ("sum", "j", ("mul", ("equal", "n", ("place", "j")), "a"))))
    for dim, expected in ((1, None), (2, None)):
        given = _given({"a": [x], "n": [first]}, indices={"i": (2,), "j": (dim,)})
        yield s, back, given, InProduct([x], 2, [x]), expected
    # What reads an index that is summed cannot stand outside, whether or not a guard says so.
    bare = dataclasses.replace(LOOK_UP, guards=(("within", "n", "j"),))
    square = equal(place, place)
    yield s, bare, _given({"n": [place], "a": [x]}, indices={"j": (2,)}), InProduct([square, x], 2, [square, x]), None
    outside = _lemma(("sum", "j", "a"), "a")
    yield s, outside, _given({"a": [x]}, indices={"j": (2,)}), InProduct([x], 2, [x]), None
    wide = Space((3, 3, 3))
    inner = wide.leaf("a", 0, 2)
    total, more = wide.summed(inner, 2), View(wide.y.coefficient, wide.y.term, (3, 3), wide.y.axes)
    given = _given({"a": [inner], "b": [wide.y]}, indices={"j": (2,)})
    both = [total, more]
    for right, expected in (("a", None), ("b", [more])):
        taken = _lemma(("add", ("sum", "j", "a"), "b"), right)
        yield wide, taken, given, InSum(both, (3, 3), both), expected
    inside = _lemma(("sum", "j", "a"), "a")
    given = _given({"a": [inner]}, indices={"j": (2,)})
    yield wide, inside, given, InProduct([total], 2, [total]), None
    # A sum that is a factor is one on the right as well; one that is summed in front adds a dimension.
    doubled = _lemma(("sum", "j", "a"), ("scale", "p", ("sum", "j", "a")))
    given = _given({"a": [inner]}, {"p": 2}, indices={"j": (2,)})
    yield wide, doubled, given, InProduct([total], 2, [total]), 2
    again = _lemma(("sum", "j", "a"), ("sum", "j", ("scale", "p", "a")))
    yield wide, again, given, InProduct([total], 2, [total]), 2
    yield wide, again, given, InProduct([inner], 2, [inner]), [inner.scaled(ONE * 2)]
    f, a = View(ONE, wide.pool.leaf("f", (3,)).term, (3, 3, 3), (((2, 1, 3),),)), wide.pool.leaf("g", (3, 3))
    labels = (0, 1, 2, 3)
    deep = View(ONE, a.term, (3, 3, 3, 3), (((2, 1, 3),), ((3, 1, 3),)))
    nested = contract(wide.pool, [deep], (labels,), labels[:3], frozenset((3,)))
    given = _given({"f": [f], "a": [deep]}, indices={"j": (2,), "l": (3,)})
    yield wide, OPEN_SUM, given, InProduct([f, nested], 2, [f, nested]), 4
    # Some of the factors, and summands, in a place of other ones.
    power = _lemma(("mul", "a", "a"), ("power", "p", "a"))
    given = _given({"a": [s.x]}, {"p": 2})
    copies = [s.x, dataclasses.replace(s.x)]
    yield s, power, given, InProduct([*copies, s.y], 3, copies), [s.y, s.of(POWER, s.x, attributes=(ONE * 2,))]
    yield s, power, given, InProduct([copies[0], s.y], 3, copies), None
    yield s, power, given, InProduct([copies[0], s.y], 3, [copies[0], copies[0]]), None
    less_one = _lemma(("add", "a", "b"), "b")
    given = _given({"a": [s.x], "b": [s.y]})
    yield s, less_one, given, InSum([s.x, s.z, s.y], s.shape, [s.x, s.y]), [s.z, s.y]
    yield s, less_one, given, InSum([s.z, s.y], s.shape, [s.x, s.y]), None
    longer = dataclasses.replace(s.x, shape=(3, 4, 3, 3))
    yield s, less_one, _given({"a": [longer], "b": [s.y]}), InSum([s.x, s.y], s.shape, [s.x, s.y]), None
