"""What must hold of values beside a mask, as checks that their mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction

import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir import relabel
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import MAXIMUM, WHERE
from verifycompile.ir.indicator import equal, less, less_equal
from verifycompile.ir.pieces import STACK
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose
from verifycompile.rewrites.operators.reduction import reduce_extreme
from verifycompile.rewrites.parts.beside_masks import (
    _HAS_TRUTHS,
    is_elementwise,
    is_given,
    looked_up_by,
    may_decide,
    may_hold,
    may_look_up,
    positions_compared,
    with_one_for,
)

N = 4
_LEAVES = {
    name: torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7 + len(shape)))
    for name, shape in {"x": (N, N), "y": (N, N), "w": (N,), "deep": (N, 2, 2)}.items()
} | {
    "mask": torch.tensor([True, False, True, True]),
    "other": torch.tensor([True, True, False, True]),
    "t": torch.tensor([2.0, 0.0, 3.0, 1.0]),
    "u": torch.tensor([1.0, 0.0, 0.0, 3.0]),
    "square": torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 1]]).bool(),
}


class Values:
    """Views over rows and columns, the same number of both."""

    def __init__(self) -> None:
        self.b = Builder(TermPool())
        self.x, self.y = (self.b.pool.leaf(name, (N, N)) for name in "xy")
        self.rows, self.columns = self.of_rows(self.b.iota(N)), self.of_columns(self.b.iota(N))
        self.index = self.of_rows(self.leaf("t"))
        self.mask = self.of_rows(self.b.pool.leaf("mask", (N,), indicator=True))
        self.causal = less_equal(self.b.pool, self.columns, self.rows)
        self.square = self.b.pool.leaf("square", (N, N), indicator=True)
        self.chosen = equal(self.b.pool, self.index, self.columns)

    def leaf(self, name: str) -> View:
        return self.b.pool.leaf(name, (N,), whole=True)

    def computed(self) -> View:
        """An index that is chosen."""
        return self.b.pointwise(MAXIMUM, self.index, 0)

    def of_rows(self, view: View) -> View:
        return self.b.expand(self.b.unsqueeze(view, 1), (N, N))

    def of_columns(self, view: View) -> View:
        return self.b.expand(self.b.unsqueeze(view, 0), (N, N))

    def tanh(self, view: View, times: int = 1) -> View:
        for _ in range(times):
            view = self.b.pointwise(FUNCTIONS["tanh"], view)
        return view

    def masked(self, mask: View | None = None) -> View:
        return self.b.mul(self.mask if mask is None else mask, self.x)

    def looked_up(self, table: View, index: View | None = None) -> View:
        """What stands in each row at its index, in all columns."""
        own = self.index if index is None else index
        return self.of_rows(self.b.contraction("r c, r c -> r", equal(self.b.pool, own, self.columns), table))

    def chosen_by(self, mask: View) -> View:
        """The value where the mask holds, and a low number elsewhere."""
        return choose(self.b, mask, self.x, -9)

    def any_of(self, view: View) -> View:
        """Whether one of a row's masks holds."""
        return self.of_rows(reduce_extreme(self.b.pool, view, [1], "max"))

    def distance(self, kind: str = "max") -> View:
        """The number of columns before the row, or zero where that is larger, or smaller."""
        operation = MAXIMUM if kind == "max" else MINIMUM
        return self.b.pointwise(operation, self.b.sub(self.rows, self.columns), 0)


_Made = Callable[[Values], View]


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for number, (mask, made, expected) in enumerate(_plain()):
        yield f"beside {number}", functools.partial(_becomes, mask, made, expected)
    for number, (mask, made) in enumerate(_kept()):
        yield f"kept beside {number}", functools.partial(_becomes, mask, made, made)
    for number, made in enumerate(_undefined()):
        yield f"no number beside {number}", functools.partial(_stays, made)
    yield "stays a choice", _stays_a_choice
    yield "may hold", _may_hold
    yield "may decide", _may_decide
    yield "may look up", _may_look_up
    yield "given", _is_given
    yield "no sum", _is_no_sum
    yield "truths", _has_truths
    yield "element by element", _is_elementwise
    yield "positions", _compares_positions
    yield "looked up", _is_looked_up
    yield "shared values", _is_found_in_time


def _plain() -> Iterator[tuple[_Made, _Made, _Made]]:
    """A mask, a value, and what it is beside the mask."""
    mask: _Made = lambda v: v.mask  # noqa: E731 - a name for one view
    yield mask, lambda v: v.b.scale(v.mask, 3), lambda v: v.b.full(3, (N, N))
    yield mask, lambda v: v.tanh(v.masked()), lambda v: v.tanh(v.x)
    yield mask, lambda v: v.b.scale(v.tanh(v.masked()), 3), lambda v: v.b.scale(v.tanh(v.x), 3)
    yield mask, lambda v: v.b.exp(v.b.mul(v.masked(), v.y)), lambda v: v.b.exp(v.b.mul(v.x, v.y))
    yield mask, lambda v: v.b.add(v.masked(), v.y), lambda v: v.b.add(v.x, v.y)
    yield mask, lambda v: v.b.add(v.mask, v.y), lambda v: v.b.add(v.y, 1)
    yield mask, lambda v: v.tanh(v.mask, 10), lambda v: v.tanh(v.b.full(1, (N, N)), 10)
    yield mask, lambda v: v.of_rows(v.b.sum(v.tanh(v.masked()), [1])), lambda v: v.of_rows(v.b.sum(v.tanh(v.x), [1]))
    yield (
        mask,
        lambda v: v.of_rows(v.b.contraction("r c, r c -> r", v.tanh(v.masked()), v.y)),
        lambda v: v.of_rows(v.b.contraction("r c, r c -> r", v.tanh(v.x), v.y)),
    )
    yield mask, lambda v: v.b.negate(v.mask), lambda v: v.b.pool.zero((N, N))
    for function in (lambda b, a: b.power(a, -1), lambda b, a: b.log(a), lambda b, a: b.power(a, Fraction(1, 3))):
        for positive in (
            lambda b, a: b.exp(a),
            lambda b, a: b.sum(b.exp(a), [1], keepdim=True),
            lambda b, a: b.add(b.pointwise(FUNCTIONS["abs"], a), 1),
        ):
            yield (
                mask,
                lambda v, function=function, positive=positive: function(v.b, positive(v.b, v.masked())),
                lambda v, function=function, positive=positive: function(v.b, positive(v.b, v.x)),
            )
    masked_out: _Made = lambda v: v.b.negate(v.mask)  # noqa: E731 - a name for one view
    low: _Made = lambda v: v.b.full(-9, (N, N))  # noqa: E731 - a name for one view
    yield mask, lambda v: v.chosen_by(v.mask), lambda v: v.x
    yield mask, lambda v: v.b.exp(v.chosen_by(v.b.negate(v.mask))), lambda v: v.b.exp(low(v))
    defined: _Made = lambda v: v.tanh(v.b.log(v.b.exp(v.x)))  # noqa: E731 - a name for one view
    yield mask, lambda v: choose(v.b, v.mask, defined(v), -9), defined
    yield masked_out, lambda v: v.chosen_by(v.mask), low
    yield masked_out, lambda v: v.b.exp(v.chosen_by(v.b.negate(v.mask))), lambda v: v.b.exp(v.x)
    yield (
        mask,
        lambda v: choose(v.b, v.causal, v.masked(), -9),
        lambda v: choose(v.b, v.causal, v.x, -9),
    )
    real: _Made = lambda v: less(v.b.pool, v.x, v.y)  # noqa: E731 - a name for one view
    yield real, lambda v: v.chosen_by(less_equal(v.b.pool, v.y, v.x)), low
    yield lambda v: v.b.negate(real(v)), lambda v: v.chosen_by(real(v)), low
    causal: _Made = lambda v: v.causal  # noqa: E731 - a name for one view
    yield causal, lambda v: v.b.exp(v.chosen_by(v.causal)), lambda v: v.b.exp(v.x)
    yield causal, lambda v: v.b.scale(v.chosen_by(v.causal), 3), lambda v: v.b.scale(v.x, 3)
    yield causal, lambda v: v.b.scale(v.b.exp(v.chosen_by(v.causal)), 3), lambda v: v.b.scale(v.b.exp(v.x), 3)
    yield lambda v: v.b.negate(v.causal), lambda v: v.b.exp(v.chosen_by(v.causal)), lambda v: v.b.exp(low(v))
    yield causal, lambda v: v.tanh(v.masked(v.causal)), lambda v: v.tanh(v.x)
    yield causal, lambda v: v.distance(), lambda v: v.b.sub(v.rows, v.columns)
    yield causal, lambda v: v.b.scale(v.distance(), 3), lambda v: v.b.scale(v.b.sub(v.rows, v.columns), 3)
    yield causal, lambda v: v.distance("min"), lambda v: v.b.pool.zero((N, N))
    yield (
        causal,
        lambda v: v.tanh(v.b.mul(v.distance(), v.x)),
        lambda v: v.tanh(v.b.mul(v.b.sub(v.rows, v.columns), v.x)),
    )
    yield causal, lambda v: v.any_of(v.causal), lambda v: v.b.full(1, (N, N))
    yield causal, lambda v: v.b.scale(v.any_of(v.causal), 3), lambda v: v.b.full(3, (N, N))
    yield causal, lambda v: v.b.mul(v.x, v.any_of(v.causal)), lambda v: v.x
    yield causal, lambda v: v.tanh(v.any_of(v.causal)), lambda v: v.tanh(v.b.full(1, (N, N)))
    yield (
        causal,
        lambda v: v.tanh(v.b.mul(v.any_of(v.causal), v.of_rows(v.b.pool.leaf("w", (N,))))),
        lambda v: v.tanh(v.of_rows(v.b.pool.leaf("w", (N,)))),
    )
    yield causal, lambda v: v.tanh(v.distance(), 9), lambda v: v.tanh(v.b.sub(v.rows, v.columns), 9)
    yield lambda v: v.square, lambda v: v.any_of(v.square), lambda v: v.b.full(1, (N, N))
    yield (
        lambda v: v.of_columns(relabel.select(v.square, 0, 1)),
        lambda v: v.b.expand(
            reduce_extreme(v.b.pool, v.b.unsqueeze(relabel.select(v.square, 0, 1), 0), [1], "max"), (N, N)
        ),
        lambda v: v.b.full(1, (N, N)),
    )
    yield (
        lambda v: v.of_rows(relabel.select(v.square, 1, 2)),
        lambda v: v.tanh(v.b.mul(v.of_rows(relabel.select(v.square, 1, 2)), v.x)),
        lambda v: v.tanh(v.x),
    )
    yield mask, lambda v: v.of_columns(reduce_extreme(v.b.pool, v.mask, [0], "max")), lambda v: v.b.full(1, (N, N))
    chosen: _Made = lambda v: v.chosen  # noqa: E731 - a name for one view
    computed: _Made = lambda v: equal(v.b.pool, v.computed(), v.columns)  # noqa: E731 - a name for one view
    yield computed, lambda v: v.tanh(v.computed()), lambda v: v.tanh(v.columns)
    yield computed, lambda v: v.tanh(v.b.scale(v.computed(), 3)), lambda v: v.tanh(v.b.scale(v.columns, 3))
    yield chosen, lambda v: v.looked_up(v.x), lambda v: v.x
    yield chosen, lambda v: v.b.scale(v.looked_up(v.x), 3), lambda v: v.b.scale(v.x, 3)
    yield chosen, lambda v: v.tanh(v.looked_up(v.b.exp(v.x))), lambda v: v.tanh(v.b.exp(v.x))
    yield chosen, lambda v: v.looked_up(v.b.mul(v.x, v.y)), lambda v: v.b.mul(v.x, v.y)
    yield lambda v: equal(v.b.pool, v.columns, v.index), lambda v: v.looked_up(v.x), lambda v: v.x
    yield chosen, _of_digits, lambda v: v.x
    yield chosen, _of_more, lambda v: v.b.contraction("c d, r d -> r c", v.x, v.tanh(v.y))


def _of_digits(v: Values) -> View:
    """What is looked up where the positions stand in two dimensions."""
    lookup = relabel.split_dim(equal(v.b.pool, v.index, v.columns), 1, 2, 2)
    return v.of_rows(v.b.contraction("r i j, r i j -> r", lookup, relabel.split_dim(v.x, 1, 2, 2)))


def _of_more(v: Values) -> View:
    """A sum over another dimension as well."""
    return v.of_rows(v.b.contraction("r c, c d, r d -> r", v.chosen, v.x, v.tanh(v.y)))


def _undefined() -> Iterator[_Made]:
    """Functions that have no value where the mask is zero, or may have none where it is one."""
    for function in (lambda b, a: b.power(a, -1), lambda b, a: b.log(a), lambda b, a: b.power(a, Fraction(1, 3))):
        yield lambda v, function=function: function(v.b, v.masked())
    yield lambda v: v.b.power(v.b.pointwise(FUNCTIONS["abs"], v.masked()), Fraction(-1, 3))
    yield lambda v: v.b.power(v.b.add(v.b.mul(v.mask, v.b.exp(v.x)), v.masked(v.mask)), -1)
    yield lambda v: v.b.log(v.b.mul(v.mask, v.b.add(v.b.exp(v.x), v.b.pointwise(FUNCTIONS["abs"], v.y))))
    for name in ("acos", "asin", "lgamma", "log1p"):
        yield lambda v, name=name: v.b.pointwise(FUNCTIONS[name], v.masked())


def _stays(made: _Made) -> None:
    v = Values()
    assert with_one_for(v.b.pool, v.mask, made(v)) == made(v)


def _kept() -> Iterator[tuple[_Made, _Made]]:
    """A mask, and a value that is the same without it."""
    mask: _Made = lambda v: v.mask  # noqa: E731 - a name for one view
    other: Callable[[Values], View] = lambda v: v.of_rows(v.b.pool.leaf("other", (N,), indicator=True))  # noqa: E731 - beside it
    yield mask, lambda v: v.tanh(v.x)
    yield mask, lambda v: v.tanh(v.b.mul(other(v), v.x))
    yield mask, lambda v: v.tanh(v.masked(v.of_columns(v.b.pool.leaf("mask", (N,), indicator=True))))
    yield mask, lambda v: v.tanh(v.masked(), 11)
    # What is the same in all rows may hold the mask of other rows alone.
    yield mask, lambda v: v.of_columns(v.b.sum(v.tanh(v.masked()), [0]))
    causal: _Made = lambda v: v.causal  # noqa: E731 - a name for one view
    yield mask, lambda v: v.chosen_by(other(v))
    yield mask, lambda v: v.chosen_by(v.b.negate(other(v)))
    yield lambda v: v.b.negate(v.causal), lambda v: v.chosen_by(v.b.transpose(v.causal, 0, 1))
    yield causal, lambda v: v.b.pointwise(MAXIMUM, v.b.sub(v.rows, v.columns), 2)
    yield causal, lambda v: v.b.pointwise(MAXIMUM, v.b.sub(v.columns, v.rows), -1)
    yield causal, lambda v: v.b.pointwise(MAXIMUM, v.x, v.b.sub(v.rows, v.columns))
    yield causal, lambda v: v.any_of(less_equal(v.b.pool, v.rows, v.columns))
    yield causal, lambda v: v.of_columns(reduce_extreme(v.b.pool, v.causal, [1], "max"))
    yield causal, lambda v: v.of_rows(reduce_extreme(v.b.pool, relabel.narrow(v.causal, 1, 2, 2), [1], "max"))
    yield causal, lambda v: v.of_rows(reduce_extreme(v.b.pool, v.causal, [1], "min"))
    yield causal, lambda v: v.tanh(v.distance(), 10)
    yield causal, lambda v: v.any_of(v.b.mul(v.causal, less_equal(v.b.pool, v.rows, v.columns)))
    square: _Made = lambda v: v.square  # noqa: E731 - a name for one view
    yield square, lambda v: v.of_rows(reduce_extreme(v.b.pool, relabel.narrow(v.square, 1, 2, 2), [1], "max"))
    yield square, lambda v: v.any_of(v.b.transpose(v.square, 0, 1))
    yield lambda v: v.of_rows(relabel.select(v.square, 1, 1)), lambda v: v.any_of(v.square)
    yield causal, lambda v: v.tanh(v.b.transpose(v.masked(v.causal), 0, 1))
    chosen: _Made = lambda v: v.chosen  # noqa: E731 - a name for one view
    yield chosen, lambda v: v.looked_up(v.x, v.of_rows(v.leaf("u")))
    yield chosen, lambda v: v.looked_up(v.x, v.b.add(v.index, 1))
    yield chosen, lambda v: v.of_rows(v.b.contraction("r c, r c -> r", less_equal(v.b.pool, v.index, v.columns), v.x))
    yield chosen, lambda v: v.of_columns(v.b.contraction("r c, r c -> c", v.chosen, v.tanh(v.y)))
    yield (
        chosen,
        lambda v: v.of_rows(v.b.contraction("r c, r c -> r", equal(v.b.pool, v.index, v.b.add(v.columns, 1)), v.x)),
    )
    yield lambda v: equal(v.b.pool, v.index, v.b.add(v.columns, 1)), lambda v: v.looked_up(v.x)
    yield causal, lambda v: v.looked_up(v.x)
    yield chosen, lambda v: v.tanh(v.index)  # what is given stays
    computed: _Made = lambda v: equal(v.b.pool, v.computed(), v.columns)  # noqa: E731 - a name for one view
    yield computed, lambda v: v.of_rows(v.b.sum(v.tanh(v.b.mul(v.computed(), v.y)), [1]))
    yield lambda v: equal(v.b.pool, v.b.scale(v.computed(), 2), v.columns), lambda v: v.tanh(v.computed())
    yield chosen, lambda v: v.of_rows(reduce_extreme(v.b.pool, v.chosen, [1], "min"))


def _value(view: View) -> torch.Tensor:
    return Evaluator(_LEAVES).view(view)


def _becomes(mask: _Made, made: _Made, expected: _Made) -> None:
    v = Values()
    own, value = mask(v), made(v)
    found = with_one_for(v.b.pool, own, value)
    torch.testing.assert_close(_value(own) * _value(found), _value(own) * _value(value))
    assert found == expected(v)


def _stays_a_choice() -> None:
    """Of values that may be infinite where the mask is zero, and of functions that may be no number there."""
    v = Values()
    infinite = v.b.scale(v.b.exp(v.b.full(float("inf"), (N, N))), 1)
    unbounded = v.tanh(choose(v.b, v.mask, v.x, float("inf")))
    undefined = [v.b.log(v.x), v.tanh(v.b.log(v.x)), v.b.power(v.masked(), -1), v.b.pointwise(FUNCTIONS["acos"], v.x)]
    undefined.append(unbounded)
    for then, otherwise in ((v.x, float("inf")), (v.x, v.y), (infinite, -9), *((value, -9) for value in undefined)):
        choice = choose(v.b, v.causal, then, otherwise)
        assert choice.term.operation is WHERE
        assert with_one_for(v.b.pool, v.causal, choice).term.operation is WHERE
    inside = with_one_for(v.b.pool, v.causal, v.tanh(v.chosen_by(v.causal)))
    assert inside.term.operands[0].term.operation is WHERE


def _may_hold() -> None:
    v = Values()
    for view, holds in (
        (v.mask, True), (v.tanh(v.masked()), True), (v.tanh(v.masked(), 9), True), (v.tanh(v.masked(), 10), False), (v.x, False),
        (v.tanh(v.y), False), (v.tanh(v.b.mul(v.x, v.y)), False),
    ):  # fmt: skip
        assert may_hold(v.b.pool, v.mask.term, view.term) is holds
        assert may_hold(v.b.pool, v.mask.term, view.term) is holds


def _may_decide() -> None:
    v = Values()
    real = v.b.pointwise(MAXIMUM, v.x, v.y)
    half_real = v.b.pointwise(MAXIMUM, v.x, v.rows)
    for view, decides in (
        (v.distance(), True), (v.distance("min"), True), (v.tanh(v.b.mul(v.distance(), v.x)), True), (real, False),
        (half_real, False), (v.of_rows(v.b.sum(v.tanh(v.b.mul(v.distance(), v.x)), [1])), False), (v.x, False), (v.tanh(v.x), False),
        (v.b.pointwise(MAXIMUM, v.b.add(v.rows, v.b.mul(v.x, v.y)), 0), False),
        (v.b.concatenate([v.distance(), v.tanh(v.x)], 0), False),
    ):  # fmt: skip
        assert may_decide(v.causal.term, view.term) is decides
        assert not may_decide(v.chosen.term, view.term)


def _may_look_up() -> None:
    v = Values()
    for view, looks_up in (
        (v.looked_up(v.x), True), (v.tanh(v.looked_up(v.x)), True), (v.x, False), (v.tanh(v.x), False), (v.index, False),
        (v.looked_up(v.x, v.of_rows(v.leaf("u"))), False), (v.b.mul(v.chosen, v.tanh(v.x)), False),
        (v.of_columns(v.b.contraction("r c, r c -> c", v.chosen, v.tanh(v.y))), False),
        (v.tanh(v.looked_up(v.x), 9), True), (v.tanh(v.looked_up(v.x), 10), False),
        (v.b.concatenate([v.looked_up(v.x), v.tanh(v.x)], 0), False),
        (v.of_rows(v.b.contraction("r c, r c -> r", less_equal(v.b.pool, v.index, v.columns), v.tanh(v.x))), False),
        (v.any_of(v.chosen), False), (v.b.mul(v.looked_up(v.x), v.y), True),
        (v.of_rows(v.b.contraction("r c, r c -> r", equal(v.b.pool, v.index, v.of_columns(v.leaf("u"))), v.x)), False),
    ):  # fmt: skip
        assert may_look_up(v.b.pool, v.chosen.term, view.term) is looks_up
        assert may_look_up(v.b.pool, v.chosen.term, view.term) is looks_up
        assert not may_look_up(v.b.pool, v.causal.term, view.term)
        assert not may_look_up(v.b.pool, equal(v.b.pool, v.index, v.of_columns(v.leaf("u"))).term, view.term)
    computed = v.of_rows(v.b.sum(v.tanh(v.x), [1]))
    assert not may_look_up(v.b.pool, equal(v.b.pool, computed, v.columns).term, v.looked_up(v.y, computed).term)


def _is_no_sum() -> None:
    """What is largest over all columns looks up nothing."""
    v = Values()
    signature = Signature(((0, 2), (1, 2)), (0, 1), frozenset({2}))
    largest = apply(v.b.pool, MAXIMUM, (), (v.chosen, v.x), signature)
    assert with_one_for(v.b.pool, v.chosen, largest) == largest


def _has_truths() -> None:
    v = Values()
    assert _HAS_TRUTHS(v.any_of(v.causal).term)
    assert _HAS_TRUTHS(v.b.mul(v.any_of(v.causal), v.x).term)
    assert not _HAS_TRUTHS(v.tanh(v.x).term)


def _is_given() -> None:
    v = Values()
    place = reduce_extreme(v.b.pool, v.x, [1], "max")
    assert all(is_given(view.term) for view in (v.leaf("t"), v.b.add(v.leaf("t"), v.leaf("u")), v.b.iota(N)))
    assert not any(is_given(view.term) for view in (place, v.tanh(v.x), v.causal))


def _is_elementwise() -> None:
    v = Values()
    stacked = v.b.concatenate([v.tanh(v.x), v.tanh(v.y)], 0)
    assert stacked.term.operation is STACK
    assert is_elementwise(v.tanh(v.x).term)
    assert is_elementwise(v.b.mul(v.x, v.y).term)
    for view in (v.x, stacked, v.b.sum(v.tanh(v.x), [1])):
        assert not is_elementwise(view.term)


def _compares_positions() -> None:
    v = Values()
    both = equal(v.b.pool, v.rows, v.columns)
    assert list(positions_compared(v.chosen)) == [(v.index, v.columns)]
    assert len(list(positions_compared(both))) == 2
    shifted = equal(v.b.pool, v.index, v.b.scale(v.columns, 2))
    for view in (v.b.scale(v.chosen, 2), v.causal, v.x, shifted, equal(v.b.pool, v.index, v.of_columns(v.leaf("u")))):
        assert list(positions_compared(view)) == []


def _is_looked_up() -> None:
    v = Values()
    counted, wide = v.columns.term, v.b.iota(2 * N).term
    assert looked_up_by(v.chosen, v.index, counted, (1,)) == (1,)
    assert looked_up_by(v.chosen, v.index, counted, (0, 1)) == (1,)
    assert looked_up_by(v.chosen, v.index, counted, (0,)) == ()
    assert looked_up_by(v.chosen, v.index, wide, (1,)) == ()
    assert looked_up_by(v.chosen, v.of_rows(v.leaf("u")), counted, (1,)) == ()
    assert looked_up_by(v.causal, v.index, counted, (1,)) == ()
    in_two = relabel.split_dim(v.chosen, 1, 2, 2)
    index = v.b.expand(v.b.unsqueeze(v.index, 2), (N, 2, 2))
    index = View(index.coefficient, index.term, in_two.shape, index.axes)
    assert looked_up_by(in_two, index, counted, (1, 2)) == (1, 2)
    assert looked_up_by(in_two, index, counted, (1,)) == ()
    of_one = v.b.add(index, v.b.expand(v.b.iota(2), (N, 2, 2)))
    split = relabel.split_dim(v.columns, 1, 2, 2)
    assert looked_up_by(equal(v.b.pool, of_one, split), of_one, counted, (1, 2)) == ()
    repeated, wide_index = (View(own.coefficient, own.term, (N, 2 * N), own.axes) for own in (v.chosen, v.index))
    assert looked_up_by(repeated, wide_index, counted, (1,)) == ()
    half = relabel.narrow(v.chosen, 1, 2, 2)
    narrow = relabel.narrow(v.index, 1, 2, 2)
    assert looked_up_by(half, narrow, counted, (1,)) == ()
    # The position of a row's own column.
    square = equal(v.b.pool, v.rows, v.columns)
    assert looked_up_by(square, v.rows, counted, (0, 1)) == (1,)
    of_both = v.b.add(v.index, v.columns)
    assert looked_up_by(equal(v.b.pool, of_both, v.columns), of_both, counted, (1,)) == ()


def _is_found_in_time() -> None:
    v = Values()
    view, plain = v.masked(), v.x
    for _ in range(8):
        view, plain = (v.b.pointwise(MAXIMUM, one, v.b.scale(one, 2)) for one in (view, plain))
    assert with_one_for(v.b.pool, v.mask, view) == plain
