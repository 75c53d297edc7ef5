"""What must hold of parts of values along a dimension, as checks that their mutants must fail."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_piecewise import piecewise_pool
from tests.ir.test_stretches import (
    test_a_value_has_one_form_however_it_is_cut,
    test_equal_numbers_and_counters_that_go_on_are_joined,
    test_stretches_of_a_concatenation_are_of_the_pieces_that_they_reach,
    test_sums_over_parts_of_a_line_are_joined_where_they_go_on,
)
from tests.ir.views import Leaves, leaf
from tests.lemmas.conditions import Check
from tests.lemmas.sliding_checks import _drawn, _leaves, _spans, _Sum, _value
from verifycompile.ir import relabel
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators import constant_matrix
from verifycompile.rewrites.parts import stretches
from verifycompile.rewrites.parts.sliding import read_only, read_together
from verifycompile.rewrites.parts.sliding_matrix import LINE, WINDOWS
from verifycompile.rewrites.parts.stretches import (
    Stretch,
    joined,
    narrowed,
    part_of,
    stacked,
    stretch_of,
    told_apart,
    whole,
    windowed,
    with_pieces_told_apart,
)


def checks() -> Iterator[tuple[str, Check]]:
    """All of them, by name."""
    for check in (
        _of_sizes, _of_windows, _of_one_position, _of_matrices, _of_all_positions, _of_similar_parts, _of_nested_parts, _of_repeated_values,
        _of_stacks, _of_two_digits, _of_equal_pieces, _of_single_positions,
    ):  # fmt: skip
        yield check.__name__.strip("_"), check
    rows: tuple[tuple[Callable[[int], None], range], ...] = (
        (test_a_value_has_one_form_however_it_is_cut, range(0, 300, 5)),
        (test_sums_over_parts_of_a_line_are_joined_where_they_go_on, range(0, 60, 3)),
        (test_stretches_of_a_concatenation_are_of_the_pieces_that_they_reach, range(0, 120, 4)),
    )
    for seed in range(60):
        yield f"reads no more {seed}", functools.partial(_reads_no_more, seed)
        yield f"goes on {seed}", functools.partial(_goes_on, seed)
    yield "counters", test_equal_numbers_and_counters_that_go_on_are_joined
    for check, seeds in rows:
        for seed in seeds:
            yield f"{check.__name__} {seed}", functools.partial(check, seed)


def _of_single_positions() -> None:
    """Pieces of one position each are a stack; a number among them, or a longer piece, is a piece of its own."""
    pool = TermPool()
    first, second, long = (pool.leaf(name, (size, 3)) for name, size in (("f", 1), ("s", 1), ("l", 2)))
    assert joined(pool, [first, second], 0).term.operation is STACK
    for others in ([first, pool.zero((1, 3))], [pool.zero((1, 3)), second], [first, long], [long, second]):
        assert joined(pool, others, 0).term.operation is CONCATENATE


def _reads_no_more(seed: int) -> None:
    """A part of a sum over a range is a part of a sum over what the part reads."""
    draw = random.Random(seed)
    of, axis = _drawn(draw), draw.choice((WINDOWS, LINE))
    b = Builder(TermPool())
    size = of.line if axis == WINDOWS else of.windows
    total = _Sum(b, of, axis, draw.choice(_spans(draw, size)))
    start, length = total.part(draw)
    found = part_of(b.pool, total.view, 0, start, length)
    inner = read_only(b.pool, total.view, 0, start, length)
    assert found == part_of(b.pool, total.view if inner is None else inner, 0, start, length)
    assert inner is None or found != windowed(b.pool, total.view, {0: (start, length)}) or found.is_zero
    values = (_value(view, _leaves(of, axis)) for view in (found, total.view.scaled(Fraction(1))))
    torch.testing.assert_close(next(values), next(values).narrow(0, start, length))


def _goes_on(seed: int) -> None:
    """Neighbouring windows of two sums that differ in what neither reads are one, of the same places elsewhere."""
    draw = random.Random(seed)
    of, axis = dataclasses.replace(_drawn(draw), reach=3), draw.choice((WINDOWS, LINE))
    b = Builder(TermPool())
    size = of.line if axis == WINDOWS else of.windows
    sums = [_Sum(b, of, axis, draw.choice(_spans(draw, size))) for _ in range(2)]
    cut, columns = draw.randrange(1, sums[0].size), [draw.choice([(0, 2), (0, 2), (1, 2)]) for _ in range(2)]
    spans = (0, cut), (cut, sums[0].size - cut)
    views = [
        windowed(b.pool, total.view, {0: span, 1: column})
        for total, span, column in zip(sums, spans, columns, strict=True)
    ]
    found = stretches._neighbours(b.pool, views[0], views[1], 0)
    source = read_together(b.pool, (sums[0].view, *spans[0]), (sums[1].view, *spans[1]), 0)
    same = sums[0].view == sums[1].view
    assert (found is not None) == ((same or source is not None) and columns[0] == columns[1])
    if found is not None:
        leaves = _leaves(of, axis)
        torch.testing.assert_close(_value(found, leaves), torch.cat([_value(view, leaves) for view in views]))


class _Values:
    """Leaves, and what views of them are in numbers."""

    def __init__(self) -> None:
        self.b, self.leaves = Builder(piecewise_pool()), Leaves()
        self.pool = self.b.pool

    def leaf(self, *shape: int) -> View:
        return leaf(self.pool, self.leaves, *shape)

    def of(self, view: View) -> torch.Tensor:
        return Evaluator(self.leaves).view(view)

    def are_joined(self, views: list[View], dim: int) -> View:
        found = joined(self.pool, views, dim)
        assert torch.equal(self.of(found), torch.cat([self.of(view) for view in views], dim))
        return found


def _of_sizes() -> None:
    assert whole(3) == 3
    with pytest.raises(UnalignedError, match="a part of symbolic size s"):
        whole(sympy.Symbol("s", integer=True, positive=True))


def _of_windows() -> None:
    """Windows along several dimensions are windows of one base, in one order."""
    v = _Values()
    x = v.leaf(7, 5)
    one = window(v.pool, window(v.pool, x, 0, 1, 4), 1, 2, 2)
    other = window(v.pool, window(v.pool, x, 1, 2, 2), 0, 1, 4)
    for view in (one, other):
        assert stretch_of(view) == Stretch(x, {0: (1, 4), 1: (2, 2)})
        assert windowed(v.pool, x, dict(reversed(stretch_of(view).spans.items()))) == one
    assert windowed(v.pool, v.b.transpose(x, 0, 1), {0: (2, 2), 1: (1, 4)}) == v.b.transpose(one, 0, 1)
    square = v.leaf(3, 4, 6)
    turned = v.b.reshape(v.b.permute(square, [1, 0, 2]), [12, 6])
    first = windowed(v.pool, turned, {0: (1, 5), 1: (1, 2)})
    assert first == windowed(v.pool, turned, {1: (1, 2), 0: (1, 5)})
    assert torch.equal(v.of(first), v.of(turned)[1:6, 1:3])
    rows = v.b.permute(v.b.reshape(v.leaf(6, 12), [6, 3, 4]), [1, 2, 0])  # its last dimension is read first
    assert windowed(v.pool, rows, {0: (1, 2), 2: (1, 4)}) == window(v.pool, window(v.pool, rows, 2, 1, 4), 0, 1, 2)
    nested = window(v.pool, window(v.pool, x, 0, 1, 5), 0, 2, 2)
    assert stretch_of(nested) == Stretch(x, {0: (3, 2)})


def _of_one_position() -> None:
    """A window of one position lies along the dimension that is asked for."""
    v = _Values()
    x = v.leaf(5)
    one = relabel.insert_dim(window(v.pool, x, 0, 2, 1), 0)
    for prefer in (0, 1):
        found = stretch_of(one, prefer)
        assert list(found.spans.items()) == [(prefer, (2, 1))]


def _of_matrices() -> None:
    """A part of a matrix of sliding windows is a matrix; what a range leaves out is left out of what is read."""
    v = _Values()
    matrix = constant_matrix.window(v.b, 1, 1, 1, 9, 3, 9)
    assert part_of(v.pool, matrix, 0, 2, 4).term.operation is matrix.term.operation
    assert torch.equal(v.of(part_of(v.pool, matrix, 0, 2, 4)), v.of(matrix)[2:6])


def _of_all_positions() -> None:
    v = _Values()
    x = v.leaf(5, 3)
    both = v.are_joined([window(v.pool, x, 0, 1, 2), window(v.pool, x, 0, 0, 2)], 0)
    for view in (x, both, v.b.exp(both)):
        assert narrowed(v.pool, view, 0, 0, whole(view.shape[0])) == view
    assert narrowed(v.pool, both, 0, 1, 2) != narrowed(v.pool, both, 0, 0, 2)


def _of_similar_parts() -> None:
    """Parts that digits tell apart are the whole of which they are parts; of other sizes they are not."""
    v = _Values()
    x, y = v.leaf(4, 6), v.leaf(2, 6)
    for make in (lambda view: view, v.b.exp):
        assert v.are_joined([make(relabel.narrow(x, 0, 2 * k, 2)) for k in range(2)], 0) == make(x)
    rows = [relabel.select(y, 0, k) for k in range(2)]
    for sizes in ((2, 2), (2, 3), (3, 2)):
        v.are_joined([relabel.insert_dim(row, 0, size) for row, size in zip(rows, sizes, strict=True)], 0)
    numbers = [v.pool.constant(Fraction(n), (2, 3)) for n in (1, 2, 2)]
    assert v.are_joined(numbers[1:], 0) == v.pool.constant(Fraction(2), (4, 3))
    v.are_joined(numbers, 0)
    v.are_joined(numbers, 1)


def _of_nested_parts() -> None:
    """Concatenations along the same dimension are one; along another one they are pieces."""
    v = _Values()
    x, y, z = (v.leaf(3, 3) for _ in range(3))
    inner = v.are_joined([x, y], 0)
    assert v.are_joined([inner, z], 0) == v.are_joined([x, v.are_joined([y, z], 0)], 0)
    wide = v.are_joined([x, y], 1)
    assert len(v.are_joined([wide, v.are_joined([z, y], 1)], 0).term.operands) == 2
    told = v.b.reshape(stacked(v.pool, [relabel.insert_dim(view, 0) for view in (x, y)], 0), [6, 3])
    assert told.term.operation is STACK
    assert v.are_joined([told, z], 0).term is v.are_joined([inner, z], 0).term
    assert v.are_joined([v.b.transpose(told, 0, 1), z.scaled(Fraction(2))], 1).shape == (3, 9)


def _of_repeated_values() -> None:
    """The same value repeated is one; what reads the dimension is not, and is no neighbour of itself."""
    v = _Values()
    x = v.leaf(3)
    one, two = (relabel.insert_dim(x, 0, size) for size in (1, 2))
    assert v.are_joined([one, two], 0) == relabel.insert_dim(x, 0, 3)
    square = v.leaf(4, 3)
    v.are_joined([square, square], 0)
    first, second = window(v.pool, square, 0, 0, 2), window(v.pool, square, 0, 2, 2)
    assert v.are_joined([first, second], 0) == square
    assert v.are_joined([second, first], 0) != square
    v.are_joined([first, window(v.pool, v.leaf(4, 3), 0, 2, 2)], 0)
    v.are_joined([x := v.leaf(2, 3), second], 0)
    v.are_joined([second, x], 0)
    assert v.are_joined([first, v.pool.constant(Fraction(1), (0, 3)), second], 0) == square


def _of_stacks() -> None:
    v = _Values()
    x, y = v.leaf(1, 3), v.leaf(1, 3)
    for dim, views in ((0, [x, y]), (1, [v.b.transpose(view, 0, 1) for view in (x, y)])):
        found = stacked(v.pool, views, dim)
        assert found.term.operation is STACK
        assert torch.equal(v.of(found), torch.cat([v.of(view) for view in views], dim))
    table = v.leaf(2, 3)
    assert stacked(v.pool, [relabel.narrow(table, 0, k, 1) for k in range(2)], 0) == table
    two = v.pool.constant(Fraction(2), (1, 3))
    assert torch.equal(v.of(stacked(v.pool, [two, two], 0)), torch.full((2, 3), 2.0).to(v.of(two).dtype))


def _of_two_digits() -> None:
    """Of a concatenation of which two digits are read, the upper one tells equal pieces apart."""
    v = _Values()
    both = v.are_joined([v.leaf(3, 2), v.leaf(5, 2)], 0)
    upper = v.b.reshape(both, [2, 4, 2])
    found = told_apart(v.pool, upper)
    assert max(map(len, upper.axes)) == 2
    assert max(map(len, found.axes)) == 1
    assert torch.equal(v.of(found), v.of(upper))
    assert told_apart(v.pool, both) == both
    assert told_apart(v.pool, v.b.exp(upper)).shape == (2, 4, 2)
    three = v.b.reshape(v.are_joined([v.leaf(3, 2), v.leaf(5, 2)], 0), [2, 2, 2, 2])
    assert torch.equal(v.of(told_apart(v.pool, three)), v.of(three))
    assert told_apart(v.pool, three) != three
    for other in (relabel.select(upper, 0, 1), relabel.select(upper, 1, 1), v.b.reshape(v.b.transpose(upper, 0, 1), [8, 2]),
                  relabel.narrow(upper, 0, 1, 1), relabel.narrow(three, 1, 0, 1)):  # fmt: skip
        assert told_apart(v.pool, other) == other
    halves = relabel.substitute(both, {0: [(0, 1, 2), (1, 1, 4)], 1: [(0, 2, 2)]}, (4, 4))
    assert told_apart(v.pool, halves) == halves
    turned = v.b.transpose(upper, 0, 1)
    assert torch.equal(v.of(told_apart(v.pool, turned)), v.of(turned))
    assert max(map(len, told_apart(v.pool, turned).axes)) == 1


def _of_equal_pieces() -> None:
    """Equal pieces that stay apart are told apart by a digit; those of one value, and numbers, are not."""
    v = _Values()
    x, y, one = v.leaf(2, 3), v.leaf(2, 3), v.pool.constant(Fraction(1), (2, 3))
    both = v.are_joined([x, y], 0)
    found = with_pieces_told_apart(v.pool, both)
    assert found.term.operation is STACK
    assert torch.equal(v.of(found), v.of(both))
    wide = with_pieces_told_apart(v.pool, v.are_joined([x, y], 1))
    assert wide.term.operation is STACK
    for kept in (
        x, v.are_joined([x, one], 0), v.are_joined([one, x], 0), v.are_joined([x, v.leaf(3, 3)], 0), v.are_joined([x, x], 0),
        v.are_joined([v.are_joined([x, y], 1), v.are_joined([y, x], 1)], 0), v.b.exp(x), v.b.reshape(both, [2, 2, 3]),
    ):  # fmt: skip
        assert with_pieces_told_apart(v.pool, kept) is kept
    again = stretches._concatenation(v.pool, [x, x], 0)
    assert with_pieces_told_apart(v.pool, again) is again
    rows = [v.leaf(1, 3)] * 2
    single = stretches._concatenation(v.pool, rows, 0)
    assert with_pieces_told_apart(v.pool, single).shape == (2, 3)
    assert torch.equal(v.of(with_pieces_told_apart(v.pool, single)), v.of(single))
    assert with_pieces_told_apart(v.pool, single).term.operation is not CONCATENATE
