"""Laws that terms are built by, at the boundaries of their guards."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.algebra import combine, iota
from verifycompile.ir.indicator import equal
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS


@pytest.mark.parametrize("number", [Fraction(n, 2) for n in range(-4, 12)])
def test_positions_are_those_up_to_the_size(number: Fraction) -> None:
    pool = TermPool()
    found = equal(pool, iota(pool, 4), pool.constant(number, (4,)))
    assert found.is_zero == (number not in range(4))
    expected = (torch.arange(4) == float(number)).double()
    torch.testing.assert_close(Evaluator({}).view(found), expected)


@pytest.mark.parametrize("stride", range(1, 6))
def test_counters_join_where_one_counts_what_the_other_steps_over(stride: int) -> None:
    pool = TermPool()
    high, low = (View(Fraction(1), iota(pool, size).term, (3, 4), (((d, 1, size),),)) for d, size in ((0, 3), (1, 4)))
    found = combine(pool, [high.scaled(Fraction(stride)), low])
    assert (found.term is iota(pool, 12).term) == (stride == 4)
    expected = (torch.arange(3)[:, None] * stride + torch.arange(4)).double()
    torch.testing.assert_close(Evaluator({}).view(found), expected)


@pytest.mark.parametrize("total", [6, 7, 8])
def test_padded_pieces_are_a_concatenation_where_they_fill_it(total: int) -> None:
    pool = TermPool()
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    b = Builder(pool)
    x = pool.leaf("x", (6,))
    padded = [b.pad(b.narrow(x, 0, start, 3), 0, start, total) for start in (0, 3)]
    leaves = {"x": torch.arange(1.0, 7)}
    expected = torch.tensor([1.0, 2, 3, 4, 5, 6, *[0] * (total - 6)]).double()
    found = b.add(*padded)
    assert (found == x) == (total == 6)
    torch.testing.assert_close(Evaluator(leaves).view(found), expected)
