"""What must hold of positions and slices that reach the operands of a value, as checks that their mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.lemmas.conditions import Check
from verifycompile.ir import relabel
from verifycompile.ir.algebra import Opened, open_view
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import less_equal, negate
from verifycompile.ir.pieces import STACK
from verifycompile.ir.term import TermPool, View, identity_view
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.reduction import reduce_extreme
from verifycompile.rewrites.parts.chosen import applied, at_position, like
from verifycompile.rewrites.parts.piecewise import Piecewise
from verifycompile.rewrites.parts.ranges import join_windows
from verifycompile.rewrites.parts.slices import narrow_operands

SIZES = {"x": (6, 3), "y": (6, 3), "z": (4, 3), "u": (2, 3), "v": (4, 3), "w": (2, 3), "row": (3,)}
_VALUES = {
    name: torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(name))) + 0.5
    for name, shape in SIZES.items()
}


def _leaf(b: Builder, name: str) -> View:
    return b.pool.leaf(name, SIZES[name])


def _builder() -> Builder:
    return Builder(TermPool())


def _tanh(b: Builder, view: View) -> View:
    return b.pointwise(FUNCTIONS["tanh"], view)


def _are_equal(left: View, right: View) -> None:
    assert left.shape == right.shape
    of_values = Evaluator(_VALUES)
    torch.testing.assert_close(of_values.view(left), of_values.view(right))


# -- a chosen position


def chosen_checks() -> Iterator[tuple[str, Check]]:
    """Of values at a chosen position, and of operations on other operands."""
    for number, (made, expected) in enumerate(_chosen_values()):
        yield f"chosen {number}", functools.partial(_becomes_at_position, made, expected)
    for number, made in enumerate(_kept_values()):
        yield f"kept {number}", functools.partial(_stays, made)
    for place in range(6):
        yield f"within a piece {place}", functools.partial(_is_within_a_piece, place)
    for place in range(3):
        yield f"within a window {place}", functools.partial(_is_within_a_window, place)
    yield "beside a window", _is_beside_a_window
    yield "found once", _is_found_once
    yield "on operands of which nothing is known", _is_applied_to_anything
    yield "like another", _is_like_another


def _first(b: Builder, view: View) -> View:
    """The first row without what that says of operands."""
    return relabel.select(view, 0, 0)


def _less(b: Builder, name: str = "x") -> View:
    """A value that is zero in its first row."""
    x = _leaf(b, name)
    return b.sub(x, b.narrow(x, 0, 0, 1))


_Made = Callable[[Builder], View]


def _chosen_values() -> Iterator[tuple[_Made, _Made]]:
    first: Callable[[Builder, str], View] = lambda b, name: _first(b, _leaf(b, name))  # noqa: E731 - a name for one view
    yield _less, lambda b: b.pool.zero((3,))
    yield lambda b: b.exp(b.mul(_leaf(b, "y"), _less(b))), lambda b: b.full(1, (3,))
    yield lambda b: b.log(b.add(_less(b), b.exp(_leaf(b, "y")))), lambda b: first(b, "y")
    yield (
        lambda b: b.power(b.add(_less(b), b.exp(_leaf(b, "y"))), Fraction(1, 2)),
        lambda b: b.exp(first(b, "y").scaled(Fraction(1, 2))),
    )
    yield lambda b: b.mul(_leaf(b, "y"), _less(b)).scaled(Fraction(2)), lambda b: b.pool.zero((3,))
    yield (
        lambda b: _tanh(b, b.mul(_leaf(b, "x"), _leaf(b, "y"))).scaled(Fraction(3)),
        lambda b: b.scale(_tanh(b, b.mul(first(b, "x"), first(b, "y"))), 3),
    )
    yield (
        lambda b: less_equal(b.pool, *_counters(b)),
        lambda b: less_equal(b.pool, b.iota(3), b.pool.zero((3,))),
    )
    yield lambda b: negate(b.pool, b.equal(*_counters(b))), lambda b: b.negate(b.equal(*_at_first(b)))
    yield (
        lambda b: _tanh(b, less_equal(b.pool, *_counters(b))),
        lambda b: _tanh(b, less_equal(b.pool, b.iota(3), b.pool.zero((3,)))),
    )
    yield (
        lambda b: b.mul(_leaf(b, "y"), b.add(_less(b), b.mul(_leaf(b, "y"), _leaf(b, "y")))),
        lambda b: b.power(first(b, "y"), 3),
    )
    yield lambda b: b.concatenate([b.exp(_leaf(b, "u")), b.exp(_leaf(b, "w"))], 0), lambda b: b.exp(first(b, "u"))


def _counters(b: Builder) -> tuple[View, View]:
    return b.expand(b.unsqueeze(b.iota(3), 0), (6, 3)), b.expand(b.unsqueeze(b.iota(6), 1), (6, 3))


def _at_first(b: Builder) -> tuple[View, View]:
    columns, rows = _counters(b)
    return _first(b, columns), _first(b, rows)


def _becomes_at_position(made: _Made, expected: _Made) -> None:
    b = _builder()
    chosen = _first(b, made(b))
    found = at_position(b.pool, chosen)
    _are_equal(found, chosen)
    _are_equal(found, expected(b))
    assert found == expected(b)


def _is_within_a_piece(place: int) -> None:
    b = _builder()
    u, v = b.exp(_leaf(b, "u")), b.exp(_leaf(b, "v"))
    chosen = relabel.select(b.concatenate([u, v], 0), 0, place)
    found = at_position(b.pool, chosen)
    _are_equal(found, chosen)
    assert found == at_position(b.pool, relabel.select(u if place < 2 else v, 0, place % 2 if place < 2 else place - 2))


def _is_within_a_window(place: int) -> None:
    b = _builder()
    x = b.exp(_leaf(b, "x"))
    chosen = relabel.select(window(b.pool, x, 0, 2, 3), 0, place)
    found = at_position(b.pool, chosen)
    _are_equal(found, chosen)
    assert found == at_position(b.pool, relabel.select(x, 0, 2 + place))


def _is_beside_a_window() -> None:
    """Along another dimension: where parts are assembled, the window is one of the value at the position."""
    b = _builder()
    less = b.sub(_leaf(b, "x"), b.narrow(_leaf(b, "x"), 1, 0, 1))
    chosen = relabel.select(window(b.pool, b.mul(_leaf(b, "y"), less), 0, 2, 3), 1, 0)
    assert at_position(b.pool, chosen) == chosen
    b.pool.piecewise = Piecewise()
    found = at_position(b.pool, chosen)
    _are_equal(found, chosen)
    assert found == b.pool.zero((3,))
    plain = relabel.select(window(b.pool, _leaf(b, "x"), 0, 2, 3), 1, 0)
    assert at_position(b.pool, plain) == plain
    single = relabel.select(window(b.pool, _leaf(b, "x"), 0, 2, 1), 1, 0)
    assert at_position(b.pool, single) == single


def _kept_values() -> Iterator[_Made]:
    yield lambda b: _first(b, _leaf(b, "x"))
    yield lambda b: b.exp(_less(b))
    yield lambda b: _first(b, b.sum(_tanh(b, b.mul(_leaf(b, "x"), _leaf(b, "y"))), [1]))
    yield lambda b: _first(b, b.along(PAD, (1, 1), b.exp(_less(b)), 1, 5))
    yield lambda b: relabel.select(_stacked(b), 1, 0)
    yield lambda b: _first(b, reduce_extreme(b.pool, _leaf(b, "x"), [1], "max"))


def _stacked(b: Builder) -> View:
    """Pieces that a digit tells apart."""
    stacked = b.concatenate([b.exp(_less(b)), _tanh(b, _leaf(b, "y"))], 0)
    assert stacked.term.operation is STACK
    return stacked


def _stays(made: _Made) -> None:
    b = _builder()
    view = made(b)
    count = len(b.pool.lemma_trace)
    assert at_position(b.pool, view) is view
    assert len(b.pool.lemma_trace) == count


def _is_found_once() -> None:
    b = _builder()
    chosen = _first(b, b.exp(_less(b)))
    found = at_position(b.pool, chosen)
    count = len(b.pool.lemma_trace)
    assert at_position(b.pool, chosen) is found
    assert len(b.pool.lemma_trace) == count


def _is_applied_to_anything() -> None:
    """A comparison of numbers that are not whole by construction, a negation of what may be no truth."""
    b = _builder()
    x, y, labels = _leaf(b, "x"), _leaf(b, "y"), (0, 1)
    for view, operands in ((less_equal(b.pool, *_counters(b)), (x, y)), (negate(b.pool, b.equal(*_counters(b))), (x,))):
        operation, attributes = view.term.operation, view.term.attributes
        found = applied(b.pool, view, open_view(view), operands)
        signature = Signature(tuple(labels for _ in operands), labels)
        assert found == apply(b.pool, operation, attributes, operands, signature)
    one, two = (b.full(number, view.shape) for number in (1, 2))
    assert applied(b.pool, view, open_view(view), (one,)).is_zero
    assert applied(b.pool, *_opened(b.equal(*_counters(b))), (one, two)).is_zero


def _is_like_another() -> None:
    """A function of values element by element, of as many others; what sums, reads a dimension or makes one is none."""
    b = _builder()
    x, y = _leaf(b, "x"), _leaf(b, "y")
    product = b.mul(b.exp(x), x)
    assert like(b.pool, b.exp(product), y) == b.exp(y)
    assert like(b.pool, product, x, y) == b.mul(x, y)
    stacked = b.pool.intern(STACK, (), (x, y), (2, *x.shape), 3, 0, (), (0,))
    widest = reduce_extreme(b.pool, x, [0], "max")
    for view, operands in (
        (product, (x,)), (b.exp(x), (x, y)), (b.sum(product, [1]), (x, y)), (identity_view(stacked), (x, y)), (widest, (x,)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no function of so many values, element by element"):
            like(b.pool, view, *operands)


def _opened(view: View) -> tuple[View, Opened]:
    return view, open_view(view)


# -- slices of operands


def slice_checks() -> Iterator[tuple[str, Check]]:
    """Of slices of values that are computed of concatenations."""
    for number, (made, expected, elementwise) in enumerate(_slices()):
        yield f"slice {number}", functools.partial(_is_sliced, made, expected, elementwise)
    for number, (made, elementwise) in enumerate(_no_slices()):
        yield f"no slice {number}", functools.partial(_is_not_sliced, made, elementwise)
    yield "operands that are shared", _is_found_in_time


def _joined(b: Builder, *names: str) -> View:
    return b.concatenate([_leaf(b, name) for name in names], 0)


def _sliced(b: Builder, view: View, *, elementwise: bool) -> View | None:
    """Its first two rows."""
    part: Callable[[View], View | None] = lambda operand: b.part(operand, 0, 0, 2)  # noqa: E731 - beside the other one
    narrow: Callable[[View], View] = lambda operand: b.narrow(operand, 0, 0, 2)  # noqa: E731 - beside the other one
    return narrow_operands(b.pool, view, 0, part, narrow, elementwise=elementwise)


def _deep(b: Builder, view: View, depth: int) -> View:
    for _ in range(depth):
        view = _tanh(b, view)
    return view


def _shared(b: Builder, view: View, depth: int) -> View:
    for _ in range(depth):
        view = b.pointwise(MAXIMUM, view, b.scale(view, 2))
    return view


def _slices() -> Iterator[tuple[_Made, _Made, bool]]:
    both = "u", "z"
    row: _Made = lambda b: b.expand(b.unsqueeze(_leaf(b, "row"), 0), (6, 3))  # noqa: E731 - a name for one view
    yield lambda b: b.sub(_joined(b, *both), _joined(b, "w", "v")), lambda b: b.sub(_leaf(b, "u"), _leaf(b, "w")), True
    yield (
        lambda b: b.mul(_joined(b, *both), _leaf(b, "x")).scaled(Fraction(3)),
        lambda b: b.scale(b.mul(_leaf(b, "u"), b.narrow(_leaf(b, "x"), 0, 0, 2)), 3),
        True,
    )
    yield lambda b: b.mul(_joined(b, *both), row(b)), lambda b: b.mul(_leaf(b, "u"), _leaf(b, "row")), True
    yield (
        lambda b: _tanh(b, b.mul(_joined(b, *both), row(b))),
        lambda b: _tanh(b, b.mul(_leaf(b, "u"), _leaf(b, "row"))),
        True,
    )
    yield lambda b: _deep(b, _joined(b, *both), 16), lambda b: _deep(b, _leaf(b, "u"), 16), True
    yield (
        lambda b: b.sum(_tanh(b, _joined(b, *both)), [1]),
        lambda b: b.sum(_tanh(b, _leaf(b, "u")), [1]),
        False,
    )
    yield (
        lambda b: b.along(PAD, (1, 1), _tanh(b, _joined(b, *both)), 1, 5),
        lambda b: b.along(PAD, (1, 1), _tanh(b, _leaf(b, "u")), 1, 5),
        False,
    )
    yield (
        lambda b: b.mul(_joined(b, *both), b.exp(_less(b))),
        lambda b: b.mul(_leaf(b, "u"), b.narrow(b.exp(_less(b)), 0, 0, 2)),
        True,
    )
    yield (
        lambda b: b.add(_joined(b, *both), b.add(_joined(b, "w", "v"), _leaf(b, "x"))),
        lambda b: b.add(_leaf(b, "u"), _leaf(b, "w"), b.narrow(_leaf(b, "x"), 0, 0, 2)),
        True,
    )


def _no_slices() -> Iterator[tuple[_Made, bool]]:
    yield lambda b: _leaf(b, "x"), False
    yield lambda b: _tanh(b, _leaf(b, "x")), True
    yield lambda b: _deep(b, _joined(b, "u", "z"), 17), True
    yield lambda b: b.sum(_tanh(b, _joined(b, "u", "z")), [1]), True
    yield lambda b: b.contraction("r k, r k -> r", _joined(b, "u", "z"), _joined(b, "w", "v")), False
    yield lambda b: b.along(PAD, (1, 1), _tanh(b, _joined(b, "u", "z")), 0, 8), False
    yield lambda b: _joined(b, "u", "z"), False
    yield _on_a_diagonal, False


def _on_a_diagonal(b: Builder) -> View:
    """Each row at a place of its own among those that are padded."""
    wide = b.along(PAD, (1, 1), _tanh(b, _joined(b, "u", "z")), 1, 6)
    return relabel.substitute(wide, {0: [(0, 1, 6)], 1: [(0, 1, 6)]}, (6,))


def _is_sliced(made: _Made, expected: _Made, elementwise: bool) -> None:
    b = _builder()
    whole = made(b)
    found = _sliced(b, whole, elementwise=elementwise)
    assert found is not None
    of_values = Evaluator(_VALUES)
    torch.testing.assert_close(of_values.view(found), of_values.view(whole)[:2])
    assert found == expected(b)


def _is_not_sliced(made: _Made, elementwise: bool) -> None:
    b = _builder()
    whole = made(b)
    count = len(b.pool.lemma_trace)
    assert _sliced(b, whole, elementwise=elementwise) is None
    assert len(b.pool.lemma_trace) == count


def _is_found_in_time() -> None:
    b = _builder()
    assert _sliced(b, _shared(b, _joined(b, "u", "z"), 15), elementwise=True) == _shared(b, _leaf(b, "u"), 15)


# -- windows that lie next to each other


def window_checks() -> Iterator[tuple[str, Check]]:
    """Of concatenations of windows of one value."""
    for number, (spans, joined) in enumerate((
        (((0, 2), (2, 3)), (0, 5)), (((1, 1), (2, 1), (3, 2)), (1, 4)), (((1, 2),), None), (((0, 2), (3, 2)), None),
        (((2, 3), (0, 2)), None), (((0, 2), (1, 2)), None),
    )):  # fmt: skip
        yield f"windows {number}", functools.partial(_are_joined, spans, joined)
    yield "windows of other values", _are_of_other_values


def _are_joined(spans: Sequence[tuple[int, int]], joined: tuple[int, int] | None) -> None:
    b = _builder()
    parts = [window(b.pool, _leaf(b, "x"), 0, *span) for span in spans]
    found = join_windows(b.pool, parts, 0)
    assert found == (window(b.pool, _leaf(b, "x"), 0, *joined) if joined else None)


def _are_of_other_values() -> None:
    b = _builder()
    x, y = _leaf(b, "x"), _leaf(b, "y")
    first, second = window(b.pool, x, 0, 0, 2), window(b.pool, x, 0, 2, 3)
    for parts in (
        (first, window(b.pool, y, 0, 2, 3)),
        (first, second.scaled(Fraction(2))),
        (first, _leaf(b, "u")),
        (x, first),
    ):
        assert join_windows(b.pool, parts, 0) is None
