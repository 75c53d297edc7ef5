"""The lemma on equal counters: a sum against ``n == j`` is the value at n, and nothing else is."""

from __future__ import annotations

import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir import algebra
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma

ROWS, COUNT = 3, 4
VALUES = torch.arange(float(ROWS * COUNT), dtype=torch.float64).reshape(ROWS, COUNT) ** 1.5


def built() -> tuple[Builder, View]:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    return Builder(pool), pool.leaf("x", (ROWS, COUNT))


def fired(b: Builder) -> bool:
    return "look-up" in {name for name, _ in b.pool.lemma_trace}


def check(b: Builder, view: View) -> torch.Tensor:
    validate(view)
    validate_pool(b.pool)
    return Evaluator({"x": VALUES}).view(view)


def one_hot(b: Builder, rows: int, columns: int) -> View:
    return b.equal(b.unsqueeze(b.iota(rows), 1), b.iota(columns))


def test_a_sum_against_equal_counters_is_the_value():
    b, x = built()
    result = b.contraction("r j, i j -> r i", x, one_hot(b, COUNT, COUNT))
    assert fired(b)
    assert result == x
    assert torch.equal(check(b, result), VALUES)


def test_the_counter_may_be_spelled_by_digits():
    b, x = built()
    counter = b.reshape(b.iota(COUNT), (2, 2))
    mask = b.equal(b.unsqueeze(counter, 2), b.iota(COUNT))
    result = b.contraction("r j, h l j -> r h l", x, mask)
    assert fired(b)
    assert result == b.reshape(x, (ROWS, 2, 2))


def test_no_other_factor_leaves_ones():
    b, _ = built()
    result = b.sum(one_hot(b, COUNT, COUNT), 1)
    assert torch.equal(check(b, result), torch.ones(COUNT, dtype=torch.float64))


def test_a_counter_compared_with_itself_is_one():
    b, x = built()
    result = b.mul(x, b.equal(b.iota(COUNT), b.iota(COUNT)))
    assert result == x


def test_counters_of_other_sizes_are_left():
    b, x = built()
    for rows in (COUNT - 1, COUNT + 1, 2 * COUNT):
        result = b.contraction("r j, i j -> r i", x, one_hot(b, rows, COUNT))
        expected = VALUES @ (torch.arange(rows)[:, None] == torch.arange(COUNT)).double().T
        assert torch.equal(check(b, result), expected)
    assert not fired(b)


def test_a_shifted_counter_is_left():
    b, x = built()
    mask = b.equal(b.unsqueeze(b.iota(COUNT, start=1), 1), b.iota(COUNT))
    result = b.contraction("r j, i j -> r i", x, mask)
    assert not fired(b)
    expected = torch.cat([VALUES[:, 1:], torch.zeros(ROWS, 1, dtype=torch.float64)], 1)
    assert torch.equal(check(b, result), expected)


def test_counters_that_are_not_summed_are_left():
    b, x = built()
    result = b.mul(b.unsqueeze(x, 1), one_hot(b, COUNT, COUNT))
    assert not fired(b)
    assert torch.equal(check(b, result), torch.diag_embed(VALUES))
    assert algebra.sum_over(b.pool, result, [2]) == x


def test_two_lookups_of_one_number_are_at_one_place():
    b, x = built()
    number = b.reshape(b.pool.leaf("n", (ROWS,)), (ROWS,))
    at = b.equal(b.unsqueeze(number, 1), b.iota(COUNT))
    result = b.contraction("r v, r w, r w -> r v", at, at, x)
    assert "look-up-again" in {name for name, _ in b.pool.lemma_trace}
    assert result == b.mul(at, x)
    numbers = torch.tensor([2.0, 0.0, 5.0], dtype=torch.float64)
    one_hot_rows = (numbers[:, None] == torch.arange(COUNT)).double()
    found = Evaluator({"x": VALUES, "n": numbers}).view(result)
    assert torch.equal(found, one_hot_rows * (one_hot_rows * VALUES).sum(1, keepdim=True))


def test_lookups_of_two_numbers_stay_two():
    b, x = built()
    first, second = (b.equal(b.unsqueeze(b.pool.leaf(name, (ROWS,)), 1), b.iota(COUNT)) for name in "nm")
    b.contraction("r v, r w, r w -> r v", first, second, x)
    longer = b.equal(b.unsqueeze(b.pool.leaf("n", (ROWS,)), 1), b.iota(COUNT + 1))
    b.contraction("r v, r w, r w -> r v", longer, first, x)  # a place that the table does not have
    assert "look-up-again" not in {name for name, _ in b.pool.lemma_trace}
