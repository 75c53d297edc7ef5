"""Masks that compare a value with itself at another place hold at that place, if the others let it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.exponential import is_positive
from verifycompile.ir.same_place import hold_at_same_place
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder

Masks = list[View]
ROWS, BOUND = 4, (1,)


class Values:
    """The number of the document of each of four positions, by row and by column; the positions; other numbers."""

    def __init__(self) -> None:
        self.b = b = Builder(TermPool())
        self.documents = b.pool.leaf("documents", (ROWS,), whole=True)
        self.others = b.pool.leaf("others", (ROWS,), whole=True)
        self.row, self.column = self.by_row(self.documents), self.by_column(self.documents)
        self.i, self.j = self.by_row(b.iota(ROWS)), self.by_column(b.iota(ROWS))
        self.same, self.causal = b.equal(self.row, self.column), b.less_equal(self.j, self.i)

    def by_row(self, view: View) -> View:
        return self.b.expand(self.b.unsqueeze(view, 1), (ROWS, ROWS))

    def by_column(self, view: View) -> View:
        return self.b.expand(self.b.unsqueeze(view, 0), (ROWS, ROWS))


HOLD: dict[str, Callable[[Values], Masks]] = {
    "documents alone": lambda v: [v.same],
    "documents and what is before": lambda v: [v.same, v.causal],
    "the other way round": lambda v: [v.causal, v.b.equal(v.column, v.row)],
    "what is behind": lambda v: [v.same, v.b.less_equal(v.i, v.j)],
    "a window": lambda v: [v.same, v.causal, v.b.less_equal(v.b.sub(v.i, 1), v.j)],
    "two numbers": lambda v: [v.same, v.b.equal(v.by_row(v.others), v.by_column(v.others))],
}
MAY_FAIL: dict[str, Callable[[Values], Masks]] = {
    "what is strictly before": lambda v: [v.same, v.b.less(v.j, v.i)],
    "what is strictly behind": lambda v: [v.same, v.b.less(v.i, v.j)],
    "other numbers": lambda v: [v.b.equal(v.row, v.by_column(v.others))],
    "numbers of other documents too": lambda v: [v.same, v.b.equal(v.row, v.by_column(v.others))],
    "the next document": lambda v: [v.b.equal(v.b.add(v.row, 1), v.column)],
    "a multiple": lambda v: [v.b.equal(v.b.scale(v.row, 2), v.column)],
    "no comparison": lambda v: [v.causal],
    "a number": lambda v: [v.b.equal(v.column, v.b.full(1, (ROWS, ROWS)))],
    "the first half, by row": lambda v: [v.same, v.b.less(v.j, v.b.full(2, (ROWS, ROWS)))],
}


def _some_are_seen(masks: Masks) -> bool:
    """Whether, for all numbers of documents, each row has a column where all masks hold."""
    numbers = [torch.tensor(given) for given in itertools.product(range(2), repeat=ROWS)]
    for documents, others in itertools.product(numbers, numbers):
        evaluator = Evaluator({"documents": documents, "others": others})
        if not torch.stack([evaluator.view(mask).bool() for mask in masks]).all(0).any(1).all():
            return False
    return True


@pytest.mark.parametrize("name", [*HOLD, *MAY_FAIL])
def test_what_holds_at_the_same_place(name: str) -> None:
    v = Values()
    masks = {**HOLD, **MAY_FAIL}[name](v)
    assert hold_at_same_place(masks, BOUND) is (name in HOLD)
    if name in HOLD and len(masks) < 3:
        assert _some_are_seen(masks)


def test_places_cut_over_ranks() -> None:
    """Rows that two ranks hold, two each, are positions of the whole sequence as well."""
    v = Values()
    b, causal = v.b, v.b.reshape(v.causal, (2, 2, ROWS))
    row = b.expand(b.unsqueeze(b.reshape(v.documents, (2, 2)), 2), (2, 2, ROWS))
    column = b.expand(b.unsqueeze(b.unsqueeze(v.documents, 0), 0), (2, 2, ROWS))
    same = b.equal(row, column)
    assert hold_at_same_place([same, causal], (2,))
    assert not hold_at_same_place([same, causal], (0, 1))


def test_digits_that_do_not_align_say_nothing() -> None:
    """A column of four is no pair of a row of two and one of two where a mask cuts the columns by three of six."""
    b = Builder(TermPool())
    six = b.pool.leaf("documents", (6,), whole=True)
    row = b.expand(b.unsqueeze(b.reshape(six, (2, 3)), 2), (2, 3, 6))
    column = b.expand(b.unsqueeze(b.unsqueeze(six, 0), 0), (2, 3, 6))
    pairs = b.reshape(b.pool.leaf("pairs", (3,), whole=True), (3, 1))
    of_pairs = b.expand(b.reshape(b.expand(pairs, (3, 2)), (1, 1, 6)), (2, 3, 6))
    masks = [b.equal(row, column), b.equal(of_pairs, b.full(1, (2, 3, 6)))]
    assert not hold_at_same_place(masks, (2,))


def test_a_sum_over_a_document_is_positive() -> None:
    v = Values()
    weights = v.b.exp(v.b.pool.leaf("scores", (ROWS, ROWS)))
    assert is_positive(v.b.sum(v.b.mul(v.same, v.causal, weights), [1]))
    assert not is_positive(v.b.sum(v.b.mul(v.same, v.b.less(v.j, v.i), weights), [1]))
