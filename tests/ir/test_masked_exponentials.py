"""Exponentials of masked scores: minus infinity is zero there, however the mask is written."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import choose, triangle

KEEP = torch.tensor([[True, False, True], [False, True, True]])


def setting() -> tuple[Builder, View, View, Evaluator]:
    b = Builder(TermPool())
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    evaluator = Evaluator({"x": x, "keep": KEEP})
    return b, b.pool.leaf("x", (2, 3)), b.pool.leaf("keep", (2, 3), indicator=True), evaluator


def forms(b: Builder, x: View, keep: View) -> list[View]:
    """Scores that are minus infinity where ``keep`` is zero."""
    minus = b.full(-math.inf, (2, 3))
    return [
        choose(b, keep, x, -math.inf),
        choose(b, b.negate(keep), -math.inf, x),
        b.add(x, choose(b, keep, 0, minus)),
        b.add(x, choose(b, b.negate(keep), minus, 0)),
    ]


@pytest.mark.parametrize("position", range(4))
def test_masked_exponential(position: int) -> None:
    b, x, keep, evaluator = setting()
    expected = b.mul(b.exp(x), keep)
    view = b.exp(forms(b, x, keep)[position])
    assert view == expected
    torch.testing.assert_close(evaluator.view(view), torch.where(KEEP, evaluator.view(b.exp(x)), 0.0))


def test_other_infinities_stay() -> None:
    b, x, keep, _ = setting()
    expected = b.mul(b.exp(x), keep)
    for view in (choose(b, keep, x, math.inf), choose(b, keep, -math.inf, x), choose(b, keep, x, -1e9)):
        assert b.exp(view) != expected
    assert b.exp(b.full(-math.inf, (2, 3))).is_zero


def test_triangles_are_comparisons_of_positions() -> None:
    b = Builder(TermPool())
    ones, row, column = b.full(1, (4, 4)), b.unsqueeze(b.iota(4), 1), b.iota(4)
    assert triangle(b, ones, 0, lower=True) == b.expand(b.less_equal(column, row), (4, 4))
    assert triangle(b, ones, -1, lower=True) == b.expand(b.less(column, row), (4, 4))
    assert triangle(b, ones, 1, lower=False) == b.expand(b.less(row, column), (4, 4))
    assert b.negate(triangle(b, ones, 1, lower=False)) == triangle(b, ones, 0, lower=True)


def test_the_exponential_of_a_logarithm_of_a_masked_sum() -> None:
    b, x, keep, evaluator = setting()
    total = b.sum(b.mul(b.exp(x), keep), [1])
    inverse = b.exp(b.scale(b.log(total), -1))
    assert inverse == b.power(total, -1)
    torch.testing.assert_close(evaluator.view(inverse), 1 / evaluator.view(total))
    other = b.sum(b.mul(b.exp(x), x), [1])
    assert b.exp(b.scale(b.log(other), -1)) != b.power(other, -1)
