"""Values assembled from parts: they have one form, and the values that they have as a whole, however they are cut."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_piecewise import piecewise_pool
from tests.ir.views import Leaves, leaf
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.constant_matrix import window
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.padding import part_of

_ROWS, _COLUMNS = 9, 6
_CUTS = {
    _ROWS: ([0, 9], [0, 2, 9], [0, 4, 6, 9], [0, 3, 6, 9], [0, 3, 5, 9]),
    _COLUMNS: ([0, 6], [0, 2, 6], [0, 4, 6], [0, 3, 6]),
}
Span = tuple[int, int]
"""The first position, and the one past the last."""
Part = Callable[[Span, Span], View]
"""The value at some rows and columns."""


class _Program:
    """A random value as what each of its parts is computed of."""

    def __init__(self, draw: random.Random, b: Builder) -> None:
        self.draw, self.b, self.leaves = draw, b, Leaves()
        self.lines = draw.choice([[0, 1], [1, 0]])
        """Along which dimensions windows may slide yet: of windows of windows not every cut is brought back."""

    def made(self, depth: int) -> Part:
        kinds = [self._function, self._sum, self._product, self._weights, self._angle, self._windows]
        return self.draw.choice(kinds)(depth - 1) if depth else self._leaf()

    def _leaf(self) -> Part:
        x, b = leaf(self.b.pool, self.leaves, _ROWS, _COLUMNS), self.b
        return lambda rows, columns: _cut(b, _cut(b, x, 0, rows), 1, columns)

    def _function(self, depth: int) -> Part:
        of, function = self.made(depth), FUNCTIONS[self.draw.choice(["tanh", "sigmoid"])]
        return lambda rows, columns: self.b.pointwise(function, of(rows, columns))

    def _sum(self, depth: int) -> Part:
        one, other = self.made(depth), self.made(0)
        return lambda rows, columns: self.b.add(one(rows, columns), other(rows, columns))

    def _product(self, depth: int) -> Part:
        one, other = self.made(depth), self.made(0)
        return lambda rows, columns: self.b.mul(one(rows, columns), other(rows, columns))

    def _weights(self, depth: int) -> Part:
        of, w, b = self.made(depth), leaf(self.b.pool, self.leaves, _COLUMNS, _COLUMNS), self.b
        return lambda rows, columns: b.contraction("n k, k m -> n m", of(rows, (0, _COLUMNS)), _cut(b, w, 1, columns))

    def _angle(self, depth: int) -> Part:
        of, b, dim = self.made(depth), self.b, self.draw.randrange(2)

        def part(rows: Span, columns: Span) -> View:
            first, stop = (rows, columns)[dim]
            angle = b.pointwise(FUNCTIONS["cos"], b.iota(stop - first, first))
            return b.mul(of(rows, columns), angle if dim else b.unsqueeze(angle, 1))

        return part

    def _windows(self, depth: int) -> Part:
        """A convolution along one dimension: of a part, its edges are read too."""
        if not self.lines:
            return self._function(depth)
        dim = self.lines.pop()
        of, kernel, b = self.made(depth), leaf(self.b.pool, self.leaves, 3), self.b
        size, text = ((_ROWS, "x c, k, o k x -> o c"), (_COLUMNS, "c x, k, o k x -> c o"))[dim]

        def part(rows: Span, columns: Span) -> View:
            first, stop = (rows, columns)[dim]
            read = max(first - 1, 0), min(stop + 1, size)
            matrix = window(b, 1, 1 - first + read[0], 1, stop - first, 3, read[1] - read[0])
            return b.contraction(text, of(rows, read) if dim else of(read, columns), kernel, matrix)

        return part


def _cut(b: Builder, view: View, dim: int, span: Span) -> View:
    return part_of(b, view, dim, span[0], span[1] - span[0])


@pytest.mark.parametrize("seed", range(300))
def test_a_value_has_one_form_however_it_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    b = Builder(piecewise_pool())
    program = _Program(draw, b)
    part = program.made(draw.randint(0, 3))
    whole = part((0, _ROWS), (0, _COLUMNS))
    rows, columns = (list(itertools.pairwise(draw.choice(_CUTS[size]))) for size in (_ROWS, _COLUMNS))
    if draw.random() < 0.5:
        joined = b.concatenate([b.concatenate([part(r, c) for c in columns], 1) for r in rows], 0)
    else:
        joined = b.concatenate([b.concatenate([part(r, c) for r in rows], 0) for c in columns], 1)
    read = Evaluator(program.leaves)
    assert torch.allclose(read.view(joined), read.view(whole))
    assert joined == whole


@pytest.mark.parametrize("seed", range(60))
def test_sums_over_parts_of_a_line_are_joined_where_they_go_on(seed: int) -> None:
    """Windows of convolutions of parts of one line, which differ where they are not read: one, where they go on."""
    draw = random.Random(seed)
    b, leaves = Builder(piecewise_pool()), Leaves()
    x, kernel = leaf(b.pool, leaves, _ROWS, _COLUMNS), leaf(b.pool, leaves, 3)
    cut = draw.randint(2, _ROWS - 2)
    ends = (0, min(cut + draw.randint(0, 2), _ROWS)), (max(cut - draw.randint(0, 2), 0), _ROWS)
    columns = (1, 4), draw.choice([(1, 4), (1, 4), (2, 5)])
    views: list[View] = []
    values: list[torch.Tensor] = []
    for rows, (first, stop), read in zip(((0, cut), (cut, _ROWS)), columns, ends, strict=True):
        matrix = window(b, 1, 1 + read[0], 1, _ROWS, 3, read[1] - read[0])
        found = b.contraction("x c, k, o k x -> o c", _cut(b, x, 0, read), kernel, matrix)
        views.append(_cut(b, _cut(b, found, 0, rows), 1, (first, stop)))
        values.append(Evaluator(leaves).view(found)[slice(*rows), first:stop])
    joined = b.concatenate(views, 0)
    assert torch.allclose(Evaluator(leaves).view(joined), torch.cat(values))
    reach = ends[0][1] > cut and ends[1][0] < cut
    whole = b.contraction("x c, k, o k x -> o c", x, kernel, window(b, 1, 1, 1, _ROWS, 3, _ROWS))
    assert (joined == _cut(b, whole, 1, columns[0])) == (reach and columns[0] == columns[1])


@pytest.mark.parametrize("seed", range(120))
def test_stretches_of_a_concatenation_are_of_the_pieces_that_they_reach(seed: int) -> None:
    """Stretches of a concatenation of parts, numbers, and pieces of any order: of those alone that they reach."""
    draw = random.Random(seed)
    b, leaves = Builder(piecewise_pool()), Leaves()
    x, y = (leaf(b.pool, leaves, _ROWS, 2) for _ in range(2))
    views: list[View] = []
    for _ in range(draw.randint(2, 4)):
        first, length = draw.randrange(_ROWS), draw.randint(0, 3)
        kinds = [_cut(b, draw.choice([x, y]), 0, (first, min(first + length + 1, _ROWS))) for _ in range(2)]
        views.append(draw.choice([*kinds, b.pool.constant(Fraction(draw.randint(0, 1)), (length, 2))]))
    dim = draw.randrange(2)
    views = [b.transpose(view, 0, 1) for view in views] if dim else views
    joined = b.concatenate(views, dim)
    read = Evaluator(leaves)
    value = torch.cat([read.view(view) for view in views], dim)
    assert torch.equal(read.view(joined), value)
    start = draw.randrange(value.shape[dim])
    stop = draw.randint(start + 1, value.shape[dim])
    part = _cut(b, joined, dim, (start, stop))
    assert torch.equal(read.view(part), value.narrow(dim, start, stop - start))
    ends = itertools.accumulate((view.shape[dim] for view in views), initial=0)
    for end, view in zip(ends, views, strict=False):
        length = int(view.shape[dim])
        if length and views.count(view) == 1:
            assert _cut(b, joined, dim, (int(end), int(end) + length)) == view


def test_equal_numbers_and_counters_that_go_on_are_joined() -> None:
    b, leaves = Builder(piecewise_pool()), Leaves()
    two, angles = Fraction(2), FUNCTIONS["cos"]
    assert b.concatenate([b.pool.constant(two, (n,)) for n in (3, 4)], 0) == b.pool.constant(two, (7,))
    first, on, apart = b.iota(3), b.iota(4, 3), b.iota(4, 4)
    for make in (lambda view: view, functools.partial(b.pointwise, angles)):
        assert b.concatenate([make(first), make(on)], 0) == make(b.iota(7))
        other = b.concatenate([make(first), make(apart)], 0)
        assert torch.equal(Evaluator({}).view(other), torch.cat([Evaluator({}).view(make(v)) for v in (first, apart)]))
    x = leaf(b.pool, leaves, 3)
    both = b.concatenate([x, b.add(x, x), x], 0)
    value = leaves["x0"]
    assert torch.equal(Evaluator(leaves).view(both), torch.cat([value, 2 * value, value]))
