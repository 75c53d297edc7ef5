"""Matrices of sliding windows on parts: what they reach, and sums over stretches of windows assembled."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.test_piecewise import piecewise_pool
from tests.ir.views import Leaves, leaf
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.constant_matrix import window
from verifycompile.rewrites.operators.windows import slice_copy
from verifycompile.rewrites.parts.sliding_matrix import LINE, REACH, WINDOWS, Matrix


def dense(matrix: Matrix) -> torch.Tensor:
    value = torch.zeros(matrix.windows, matrix.reach, matrix.line)
    for o, k in itertools.product(range(matrix.windows), range(matrix.reach)):
        x = o * matrix.stride - matrix.padding + k * matrix.dilation
        if 0 <= x < matrix.line:
            value[o, k, x] = 1
    return value


def drawn(draw: random.Random) -> Matrix:
    one, two, *sizes = (draw.randint(1, n) for n in (3, 3, 6, 4, 8))
    return Matrix(one, draw.randint(-2, 5), two, *sizes)


@pytest.mark.parametrize("seed", range(60))
def test_parts_and_reach(seed: int) -> None:
    draw = random.Random(seed)
    matrix = drawn(draw)
    value = dense(matrix)
    for axis, size in ((WINDOWS, matrix.windows), (REACH, matrix.reach), (LINE, matrix.line)):
        start = draw.randrange(size)
        length = draw.randint(1, size - start)
        assert torch.equal(dense(matrix.moved(axis, start, length)), value.narrow(axis, start, length))
    for axis, other in ((WINDOWS, LINE), (LINE, WINDOWS)):
        first = draw.randrange(value.shape[other])
        last = draw.randint(first, value.shape[other] - 1)
        for part, span in ((value, None), (value.narrow(other, first, last - first + 1), (first, last))):
            low, high = matrix.hits(axis, span)
            used = part.movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist()
            assert all(low <= position <= high for position in used)
        start, length = matrix.everything(axis)
        if start <= 0 and value.shape[axis] - start <= length:
            whole = dense(matrix.moved(axis, start, length))
            wider = dense(matrix.moved(axis, start - 3, length + 6))
            assert whole.sum() == wider.sum()
            assert torch.equal(whole.narrow(axis, -start, value.shape[axis]), value)


def _convolved(b: Builder, x: View, weight: View, padding: int, made: int) -> View:
    matrix = window(b, 1, padding, 1, made, int(weight.shape[0]), int(x.shape[0]))
    return b.contraction("x, k, o k x -> o", x, weight, matrix)


@pytest.mark.parametrize("seed", range(40))
def test_stretches_that_a_halo_joins(seed: int) -> None:
    """Ends are drawn: where they are right, the parts are one term with the whole; the value is theirs in any case."""
    draw = random.Random(seed)
    pool, leaves = piecewise_pool(), Leaves()
    b = Builder(pool)
    line, reach = 8, draw.choice([2, 3])
    x, weight, gradient = (leaf(pool, leaves, size) for size in (line, reach, line))
    right = draw.random() < 0.5
    cut = draw.randint(2, line - reach)  # a single position is read by no digit, and has no such form
    halo = reach - 1 if right else draw.randint(0, reach)
    first = _convolved(b, slice_copy(b, x, 0, 0, cut, 1), weight, reach - 1, cut)
    joined = b.concatenate([slice_copy(b, x, 0, cut - halo, cut, 1), slice_copy(b, x, 0, cut, line, 1)], 0)
    second = _convolved(b, joined, weight, 0 if right else draw.randint(0, 2), line - cut)
    result = b.concatenate([first, second], 0)
    whole = _convolved(b, x, weight, reach - 1, line)
    parts = [b.contraction("o, o ->", *pair) for pair in (
        (first, slice_copy(b, gradient, 0, 0, cut, 1)), (second, slice_copy(b, gradient, 0, cut, line, 1)),
    )]  # fmt: skip
    total, expected = b.add(*parts), b.contraction("o, o ->", whole, gradient)
    evaluator = Evaluator(leaves)
    same = torch.allclose(evaluator.view(result), evaluator.view(whole))
    assert (result == whole) == same
    assert torch.allclose(evaluator.view(total), (evaluator.view(result) * leaves["x2"]).sum())
    if same:
        assert total == expected
