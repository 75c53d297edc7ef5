"""Every way to read small terms over small shapes: what is said of a view holds for its elements."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.views import Leaves, leaf
from verifycompile.ir import relabel
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, opened_stack, pieces_of
from verifycompile.ir.relabel import UnalignedError, merge_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import CONSTANT, LEAF, Axis, Digit, Term, TermPool, View
from verifycompile.ir.window import WINDOW, is_single, window_at
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder

SHAPES = ((4,), (4, 2), (2, 4), (8,), (1, 4))


def readings(term: Term, shape: tuple[int, ...]) -> Iterator[View]:
    """All views of a term over a shape whose axes have two digits at most, with a coefficient."""
    for axes in itertools.product(*(_axes(size, shape) for size in term.shape)):
        yield View(ONE * 3, term, shape, axes)


def _axes(size: int, shape: Sequence[int]) -> list[Axis]:
    splits = [(size,), *((outer, size // outer) for outer in range(2, size) if size % outer == 0)]
    found = [axis for split in splits for axis in itertools.product(*(_digits(part, shape) for part in split))]
    return [axis for axis in dict.fromkeys(map(merge_digits, found)) if math.prod(d[2] for d in axis) == size]


def _digits(size: int, shape: Sequence[int]) -> Iterator[Digit]:
    yield from ((CONSTANT, number, size) for number in range(size))
    for dim, extent in enumerate(shape):
        yield from ((dim, below, size) for below in range(1, extent + 1) if extent % (below * size) == 0)


@functools.cache
def terms() -> tuple[Evaluator, list[Term]]:
    """Concatenations, stacks of two and of four, windows of four positions and of one, and a leaf."""
    leaves: Leaves = {}
    b = Builder(TermPool())
    one, three, two, other, long = (leaf(b.pool, leaves, rows, 2) for rows in (1, 3, 2, 2, 8))
    made = [b.concatenate([one, three], 0), b.concatenate([two, other], 0)]
    made += [b.concatenate([leaf(b.pool, leaves, 1) for _ in range(4)], 0)]
    made += [b.concatenate([leaf(b.pool, leaves, rows, 1, 2) for rows in (1, 3)], 0)]
    made += [window(b.pool, view, 0, start, length) for view, start, length in _windows(long)]
    made += [leaf(b.pool, leaves, 4)]
    operations = [view.term.operation for view in made]
    assert operations == [CONCATENATE, STACK, STACK, CONCATENATE, WINDOW, WINDOW, WINDOW, LEAF]
    return Evaluator(leaves), [view.term for view in made]


def _windows(long: View) -> list[tuple[View, int, int]]:
    return [(long, 1, 4), (long, 2, 1), (relabel.select(long, 1, 1), 1, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_concatenations_and_windows_are_what_they_are_said_to_be(shape: tuple[int, ...]) -> None:
    evaluator, made = terms()
    for view in itertools.chain.from_iterable(readings(term, shape) for term in made[:-1]):
        value = evaluator.view(view)
        torch.testing.assert_close(evaluator.view(opened_stack(view)), value)
        dim = concatenated_dim(view)
        if dim is not None:
            assert dim >= 0
            torch.testing.assert_close(torch.cat([evaluator.view(p) for p in pieces_of(view, dim)], dim), value)
        for dim, size in enumerate(shape):
            found = window_at(view, dim)
            if found is not None:
                source = evaluator.view(found.source)
                torch.testing.assert_close(source.narrow(dim, found.start, size), value)
            assert found is not None or not is_single(view, dim) or view.uses(dim)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (12,)])
def test_parts_and_inverses_are_what_they_are_said_to_be(shape: tuple[int, ...]) -> None:
    evaluator, made = terms()
    leaves = made[-1], made[4]
    for view in itertools.chain.from_iterable(readings(term, shape) for term in leaves):
        value = evaluator.view(view)
        _parts(evaluator, view, value)
        inverse = relabel.inverse_digits(view)
        if inverse is not None:
            assert inverse.keys() == {d[0] for axis in view.axes for d in axis}
            _is_inverse(view, inverse)


def _parts(evaluator: Evaluator, view: View, value: torch.Tensor) -> None:
    for dim, size in enumerate(view.shape):
        for start, length in itertools.combinations(range(size + 1), 2):
            try:
                part = relabel.narrow(view, dim, start, length - start)
            except UnalignedError:
                continue
            torch.testing.assert_close(evaluator.view(part), value.narrow(dim, start, length - start))
        if not view.uses(dim):
            torch.testing.assert_close(evaluator.view(relabel.remove_dim(view, dim)), value.select(dim, 0))


def _is_inverse(view: View, inverse: dict[int, list[Digit]]) -> None:
    """The axes' positions at every index of the view spell the index again."""
    for index in itertools.product(*map(range, view.shape)):
        positions = [_number([index[d] // b % s * (d >= 0) for d, b, s in axis], axis) for axis in view.axes]
        for dim, digits in inverse.items():
            assert index[dim] == _number([positions[k] // below % size for k, below, size in digits], digits)


def _number(values: Sequence[int], digits: Sequence[Digit]) -> int:
    return functools.reduce(lambda high, part: high * part[1][2] + part[0], zip(values, digits, strict=True), 0)


def test_the_inverse_of_a_view_is_found_where_there_is_one() -> None:
    view = TermPool().leaf("x", (4, 2))
    assert relabel.inverse_digits(view) == {0: [(0, 1, 4)], 1: [(1, 1, 2)]}
    assert relabel.inverse_digits(relabel.reshape(view, (2, 2, 2))) == {0: [(0, 2, 2)], 1: [(0, 1, 2)], 2: [(1, 1, 2)]}
    assert relabel.inverse_digits(relabel.reshape(view, (8,))) == {0: [(0, 1, 4), (1, 1, 2)]}
    assert relabel.inverse_digits(relabel.select(view, 0, 1)) is None
