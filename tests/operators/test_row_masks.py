"""Rows sorted by a key that is one number for all that are not meant: the last groups, which no product computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.operators.test_ragged import Value
from tests.operators.test_sorted_rows import ROWS, WIDTH, Routed
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.catalogue import product_lemma
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.rewrites.rows.ragged import call_ragged
from verifycompile.rewrites.rows.rows import dense

aten = torch.ops.aten


class Masked(Routed):
    """Chosen groups from ``own`` on are not meant: their key is ``own``."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.pool.contraction_rules.append(product_lemma)
        self.own = own
        b = self.builder
        self.other = self.plain(aten.ge.Scalar, self.chosen, own)
        key = Value(b.full(own, (ROWS,)), torch.full((ROWS,), own))
        inside = self.plain(aten.remainder.Scalar, self.chosen, own)
        self.keys, self.order = self.call(
            aten.sort.stable, self.plain(aten.where.self, self.other, key, inside), stable=True
        )
        counted = self.call(aten.histc.default, Value(self.keys.declared, self.keys.real.double()), own, 0, own - 1)
        self.sizes_of_own = counted.real.int()
        self.ends = self.plain(aten.cumsum.default, counted, 0)
        self.behind = self.call(aten.unsqueeze.default, self.call(aten.ge.Scalar, self.keys, own), 1)

    def plain(self, target: Any, *args: Any) -> Value:
        """An operator on tensors of known sizes."""
        declared = [a.declared if isinstance(a, Value) else a for a in args]
        real = [a.real if isinstance(a, Value) else a for a in args]
        self.builder.call = Call({"self": torch.int64, "other": torch.int64}, None, torch.int64)
        found = Value(dense(self.builder, target, *declared), target(*real))
        self.check_view(found)
        return found

    def check_view(self, value: Value) -> None:
        assert torch.equal(self.rows(value.declared).double(), value.real.double())

    def product(self, rows: Value, matrices: Value) -> Value:
        """The rows that a product of groups computes, with numbers that are no zeros behind them."""
        self.builder.call = Call()
        declared = call_ragged(self.builder, self.counts, aten._grouped_mm.default,
                               [rows.declared, matrices.declared, self.ends.declared], {})  # fmt: skip
        parts = rows.real[: self.sizes_of_own.sum()].split(self.sizes_of_own.tolist())
        known = torch.cat([part @ matrices.real[number] for number, part in enumerate(parts)])
        behind = torch.full((ROWS - known.shape[0], known.shape[1]), 7.0, dtype=torch.float64)
        return Value(declared, torch.cat([known, behind]))


@pytest.mark.parametrize("own", [1, 2])
def test_products_of_the_rows_that_are_meant(own: int) -> None:
    w = Masked(own)
    rows = w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [w.order])
    found = w.product(rows, w.random(own, WIDTH, 3))
    kept = w.call(aten.masked_fill.Scalar, found, w.behind, 0.0)
    w.call(aten.index_put.default, w.leaf_zero(ROWS, 3), [w.order], kept, True)
    places = w.call(aten.sort.default, w.order)[1]
    w.call(aten.index.Tensor, kept, [places])
    w.call(aten.cat.default, [kept, rows], 1)


def test_a_mask_that_a_row_of_its_group_has_anyway_is_no_factor_of_it() -> None:
    w = Masked(2)
    weights = w.random(ROWS)
    masked = w.plain(aten.masked_fill.Scalar, weights, w.other, 0.0)
    found = w.call(aten.index.Tensor, masked, [w.order]).declared
    same = w.call(aten.index.Tensor, weights, [w.order]).declared
    first = 2 * ROWS
    assert w.builder.narrow(found.view, 0, 0, first) == w.builder.narrow(same.view, 0, 0, first)
    assert w.builder.narrow(found.view, 0, first, ROWS) != w.builder.narrow(same.view, 0, first, ROWS)


def _summed(w: Masked, products: Value) -> None:
    w.call(aten.sum.dim_IntList, products, [0])


def _put_back(w: Masked, products: Value) -> None:
    w.call(aten.index.Tensor, products, [w.call(aten.sort.default, w.order)[1]])


def _added(w: Masked, products: Value) -> None:
    w.call(aten.index_put.default, w.leaf_zero(ROWS, 3), [w.order], products, True)


def _without_the_mask(w: Masked, products: Value) -> None:
    _summed(w, w.call(aten.mul.Tensor, products, 0.0))


def _the_other_rows_masked(w: Masked, products: Value) -> None:
    inside = w.call(aten.unsqueeze.default, w.call(aten.lt.Scalar, w.keys, w.own), 1)
    _summed(w, w.call(aten.masked_fill.Scalar, products, inside, 0.0))


def _laid_out(w: Masked, products: Value) -> None:
    w.call(aten.mm.default, w.random(3, ROWS), products)


@pytest.mark.parametrize("use", [_summed, _put_back, _added, _without_the_mask, _the_other_rows_masked, _laid_out])
def test_rows_that_nothing_was_written_to_are_not_used(use: Any) -> None:
    w = Masked(2)
    products = w.product(w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [w.order]), w.random(2, WIDTH, 3))
    w.check = lambda value: None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UnsupportedError):
        use(w, products)
