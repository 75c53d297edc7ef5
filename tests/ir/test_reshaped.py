"""Values whose dimensions are read in other digits than their own: by numbers, and as the terms that they are."""

from __future__ import annotations

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.views import Leaves, leaf
from verifycompile.ir import relabel, reshaped
from verifycompile.ir.algebra import CONTRACT
from verifycompile.ir.build import reindexed
from verifycompile.ir.term import CONSTANT, RESHAPE, TermPool, View
from verifycompile.rewrites.builder import Builder

RANKS, EACH, WIDTH = 2, 12, 3


class Values:
    """Three parts of eight columns, ``flat`` as one row of 24; a ``weight`` with a row for each column."""

    def __init__(self) -> None:
        self.leaves: Leaves = {}
        self.pool = TermPool()
        self.b = Builder(self.pool)
        self.parts, self.weight = leaf(self.pool, self.leaves, 3, 8), leaf(self.pool, self.leaves, 24, WIDTH)
        self.flat = self.b.reshape(self.parts, (24,))
        self.numbers, self.rows = (self.value(view) for view in (self.flat, self.weight))

    def value(self, view: View) -> torch.Tensor:
        return Evaluator(self.leaves).view(view)

    def by_rank(self, view: View) -> View:
        """What each of two ranks holds of the columns, the first dimension."""
        digits = [(0, 1, RANKS), (1, 1, EACH)]
        replacement = {0: digits, **{d: [(d + 1, 1, size)] for d, size in enumerate(view.shape) if d}}
        return reindexed(self.pool, view, replacement, (RANKS, EACH, *view.shape[1:]))


def test_a_dimension_that_no_digits_fit_is_one_digit() -> None:
    v = Values()
    held = v.by_rank(v.flat)
    torch.testing.assert_close(v.value(held), v.numbers.view(RANKS, EACH))
    assert held.term.operation is RESHAPE
    assert held.term.operands[0].term is v.parts.term
    assert v.by_rank(v.b.scale(v.flat, 3)) == held.scaled(v.b.scale(v.flat, 3).coefficient)


def test_what_is_read_in_its_own_digits_is_no_reshape() -> None:
    v = Values()
    held = v.by_rank(v.weight)
    assert held.term is v.weight.term
    torch.testing.assert_close(v.value(held), v.rows.view(RANKS, EACH, WIDTH))
    whole = reshaped.whole(v.pool, v.flat, 0)
    assert whole.term.operation is RESHAPE
    assert reshaped.read_back(whole) == v.flat
    assert reshaped.read_back(v.flat) is v.flat
    assert reshaped.read_back(v.by_rank(v.flat)) == v.by_rank(v.flat)
    again = reshaped.whole(v.pool, reshaped.whole(v.pool, v.flat, 0), 0)
    assert reshaped.read_back(again.scaled(v.b.scale(v.flat, 2).coefficient)) == v.b.scale(v.flat, 2)


def test_dimensions_that_fit_stay_as_they_are() -> None:
    """Of three dimensions, of which one is read in other digits."""
    v = Values()
    table = leaf(v.pool, v.leaves, 4, 3, 8, 5)
    rows = v.b.reshape(table, (4, 24, 5))
    replacement = {0: [(0, 1, 4)], 1: [(1, 1, RANKS), (2, 1, EACH)], 2: [(3, 1, 5)]}
    held = reindexed(v.pool, rows, replacement, (4, RANKS, EACH, 5))
    torch.testing.assert_close(v.value(held), v.value(rows).view(4, RANKS, EACH, 5))
    assert (held.term.operation, held.term.shape) == (RESHAPE, (4, 5, 24))
    assert held.term.operands[0].term is table.term
    replacement[1] = [(CONSTANT, 0, RANKS), (1, 1, EACH)]
    first = reindexed(
        v.pool, rows, {d: replacement[min(d, 1)] if d < 2 else [(2, 1, 5)] for d in range(3)}, (4, EACH, 5)
    )
    torch.testing.assert_close(v.value(first), v.value(rows)[:, :EACH])


def test_a_sum_over_all_is_that_of_the_parts() -> None:
    """The gradient of what ranks gather: each rank's columns by its rows, summed over the ranks."""
    v = Values()
    summed = v.b.contraction("r c, r c w -> w", v.by_rank(v.flat), v.by_rank(v.weight))
    assert summed == v.b.contraction("c, c w -> w", v.flat, v.weight)
    assert not any(view.term.operation is RESHAPE for view in summed.term.operands)
    torch.testing.assert_close(v.value(summed), v.numbers @ v.rows)


def test_it_moves_out_of_what_treats_positions_alike() -> None:
    v = Values()
    held, rows = v.by_rank(v.flat), v.by_rank(v.weight)
    scaled = v.b.contraction("r c, r c w -> r c w", held, rows)
    assert scaled.term.operation is RESHAPE
    assert scaled == v.by_rank(v.b.contraction("c, c w -> c w", v.flat, v.weight))
    torch.testing.assert_close(v.value(scaled), (v.numbers[:, None] * v.rows).view(RANKS, EACH, WIDTH))
    assert v.b.reshape(scaled, (24, WIDTH)) == v.b.contraction("c, c w -> c w", v.flat, v.weight)


def test_digits_of_another_operand_keep_it_where_it_is() -> None:
    """Eight columns of each part are twelve of a rank nowhere: neither operand can be read as the other is."""
    v = Values()
    halves = leaf(v.pool, v.leaves, RANKS, EACH)
    local = leaf(v.pool, v.leaves, EACH)
    for other, text in (
        (v.b.scale(v.by_rank(v.b.reshape(halves, (24,))), 2), "r c, r c -> r c"),
        (local, "r c, c -> r c"),
    ):
        product = v.b.contraction(text, v.by_rank(v.flat), other)
        assert product.term.operation is CONTRACT
        torch.testing.assert_close(v.value(product), v.numbers.view(RANKS, EACH) * v.value(other))


@pytest.mark.parametrize(
    ("shape", "other"), [((6, 10), (4, 15)), ((2, 6, 10), (2, 4, 15)), ((2, 9), (3, 6)), ((9, 2), (6, 3))]
)
def test_reshapes_of_other_digits(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    v = Values()
    table = leaf(v.pool, v.leaves, *shape)
    view = v.b.reshape(table, other)
    assert view.term.operation is RESHAPE
    torch.testing.assert_close(v.value(view), v.value(table).view(other))
    assert v.b.reshape(view, shape) == table
    assert v.b.reshape(v.b.power(view, 2), shape) == v.b.power(table, 2)
    with pytest.raises(relabel.UnalignedError):
        relabel.reshape(table, other)
