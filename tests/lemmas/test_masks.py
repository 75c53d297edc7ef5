"""A mask that was applied need not be applied again; what is no mask is applied as often as it is written."""

from __future__ import annotations

import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma
from verifycompile.rewrites.operators.bounds import within


def setting() -> tuple[Builder, View, View, View, View]:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    b = Builder(pool)
    mask = b.unsqueeze(pool.leaf("mask", (3,), indicator=True), 1)
    return b, mask, *(pool.leaf(name, (3, 4)) for name in "xyz")  # type: ignore[return-value]


def values(b: Builder, view: View) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(3, 4, dtype=torch.float64, generator=generator) for name in "xyz"}
    return Evaluator({**leaves, "mask": torch.tensor([True, False, True])}).view(view)


def test_a_mask_is_its_own_square() -> None:
    b, mask, x, y, _ = setting()
    once = b.mul(mask, x, y)
    assert b.mul(mask, x, mask, y) == once
    assert b.mul(once, mask) == once
    torch.testing.assert_close(values(b, b.mul(once, mask)), values(b, once))


def test_a_mask_of_masked_summands() -> None:
    b, mask, x, y, z = setting()
    total = b.add(b.mul(mask, x), b.mul(mask, y, z))
    assert b.mul(mask, total) == total
    assert b.contraction("m k, m k -> m", b.mul(mask, total), x) == b.contraction("m k, m k -> m", total, x)
    torch.testing.assert_close(values(b, b.mul(b.add(b.mul(mask, x), y), mask)), values(b, b.mul(mask, b.add(x, y))))


def test_other_products_stay() -> None:
    b, mask, x, y, _ = setting()
    partly = b.add(b.mul(mask, x), y)
    assert b.mul(mask, partly) != partly
    other = b.unsqueeze(b.pool.leaf("other", (3,), indicator=True), 1)
    assert b.mul(mask, b.mul(other, x)) != b.mul(other, x)
    square = b.pool.leaf("square", (3, 3))
    rows, columns = b.pool.leaf("mask", (3,), indicator=True), b.unsqueeze(b.pool.leaf("mask", (3,), indicator=True), 1)
    assert b.mul(rows, columns, square) != b.mul(rows, square)
    assert b.mul(x, x) != x
    assert b.mul(x, b.add(b.mul(x, y), b.mul(x, 2))) != b.add(b.mul(x, y), b.mul(x, 2))
    summed = b.contraction("m k, m -> k", x, rows)
    assert b.mul(summed, summed) != summed


def test_a_mask_that_an_index_meets() -> None:
    """A negative log likelihood takes classes within its table, or the ignored one: masks that say so are one."""
    b, _, x, _, _ = setting()
    index = b.pool.leaf("index", (3,), whole=True)
    column = b.unsqueeze(index, 1)
    refused = [b.negate(b.equal(column, 1)), b.negate(b.equal(column, -100)), b.less(column, 3)]
    unused = [b.mul(mask, x) for mask in [b.negate(b.equal(column, 7)), b.less(column, 4), b.less_equal(-100, column)]]
    assert x not in unused
    b.assume_index(index, 4, -100, "the loss")
    b.pool.learn()
    assert b.mul(b.negate(b.equal(column, 7)), x) == x
    assert b.mul(b.less(column, 4), x) == x
    assert b.mul(b.less_equal(-100, column), x) == x
    assert list(b.pool.assumptions) == ["the loss"]
    assert all(b.mul(mask, x) != x for mask in refused)


def test_an_index_that_is_masked_is_within_its_table() -> None:
    b, *_ = setting()
    index = b.pool.leaf("index", (3,), whole=True)
    kept = b.mul(index, b.negate(b.equal(index, -100)))
    assert not within(b.pool, kept, 4)
    b.assume_index(index, 4, -100, "the loss")
    b.pool.learn()
    assert within(b.pool, kept, 4)
    assert not within(b.pool, kept, 3)
    assert not within(b.pool, index, 4)
    assert not within(b.pool, b.sub(index, 1), 4)
