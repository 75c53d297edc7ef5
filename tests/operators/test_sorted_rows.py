"""Rows sorted by a bounded number, their groups, and rows exchanged between ranks, against torch on the same numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.operators.test_ragged import Value, World
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.registry import Group, UnsupportedError
from verifycompile.rewrites.rows.ragged import call_ragged, ragged_declarations
from verifycompile.rewrites.rows.row_values import Counts, Ragged
from verifycompile.rewrites.rows.rows import dense, group_numbers, laid_out

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
TOKENS, CHOSEN, GROUPS, WIDTH = 4, 2, 3, 5
ROWS = TOKENS * CHOSEN
SIZES = sympy.symbols("a:3", integer=True)


class Routed(World):
    """Tokens that chose some of the groups; ``SIZES`` are how many did so."""

    def __init__(self) -> None:
        super().__init__({})
        self.chosen = self.topk(self.random(TOKENS, GROUPS))
        real = torch.bincount(self.chosen.real, minlength=GROUPS)
        self.sizes = Value(_sizes(self.builder, self.chosen.declared), real)
        for number, symbol in enumerate(SIZES):
            self.numbers = {**self.numbers, symbol: int(real[number])}
            self.counts.views[symbol] = self.builder.select(self.sizes.declared, 0, number)
            self.counts.lengths.add(symbol)

    def topk(self, scores: Value) -> Value:
        self.builder.call = Call()
        declared = dense(self.builder, aten.topk.default, scores.declared, CHOSEN)[1]
        return Value(self.builder.reshape(declared, (ROWS,)), scores.real.topk(CHOSEN)[1].reshape(-1))

    def check(self, value: Value) -> None:
        if isinstance(value.declared, Ragged):
            super().check(value)

    def leaf_zero(self, *shape: int) -> Value:
        return Value(self.builder.full(0, shape), torch.zeros(shape, dtype=torch.float64))

    def sort(self, *, stable: bool = True) -> tuple[Value, Value]:
        return self.call(aten.sort.stable, self.chosen, stable=stable)


def _sizes(b: Builder, chosen: Any) -> Any:
    return b.sum(b.equal(b.unsqueeze(chosen, 1), b.iota(GROUPS)), [0])


@pytest.mark.parametrize("length", [GROUPS, GROUPS + 2])
def test_numbers_that_are_known_to_be_less_are_counted(length: int) -> None:
    w = Routed()
    declared = dense(w.builder, aten.bincount.default, w.chosen.declared, minlength=length)
    World.check(w, Value(declared, torch.bincount(w.chosen.real, minlength=length)))


def test_numbers_that_may_be_larger_give_more_counts() -> None:
    w = Routed()
    with pytest.raises(UnsupportedError, match=r"bincount of numbers that may not be within \[0, 2\)"):
        dense(w.builder, aten.bincount.default, w.chosen.declared, minlength=GROUPS - 1)


def test_sorted_rows_are_those_of_torch() -> None:
    w = Routed()
    _, order = w.sort()
    token = w.call(aten.floor_divide.default, order, CHOSEN)
    rows = w.call(aten.index.Tensor, w.random(TOKENS, WIDTH), [token])
    w.call(aten.gather.default, w.random(ROWS, 1), 0, w.call(aten.unsqueeze.default, order, 1))
    w.call(aten.index.Tensor, w.chosen, [order])
    w.call(aten.scatter_add.default, w.random(ROWS, 1), 0, w.call(aten.unsqueeze.default, order, 1),
           w.call(aten.slice.Tensor, rows, 1, 0, 1))  # fmt: skip
    left, right = (w.call(aten.index.Tensor, w.random(GROUPS, 2, 2), [w.sort()[0]]) for _ in range(2))
    w.call(aten.bmm.default, left, right)
    back = w.call(aten.index_put.default, w.random(ROWS, WIDTH), [order], rows)
    assert torch.equal(w.rows(back.declared), back.real)
    places = w.call(aten.sort.default, order)[1]
    again = w.call(aten.index.Tensor, rows, [places])
    assert again.declared == back.declared
    w.call(aten.index_put.default, w.leaf_zero(ROWS, WIDTH), [places], back, True)
    found = laid_out(w.builder, w.counts, rows.declared)
    assert found is not None
    assert torch.equal(w.rows(found), rows.real)


def test_places_counted_up_are_where_rows_came_from() -> None:
    w = Routed()
    order = w.sort()[1]
    rows = w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [order])
    counter = Value(w.builder.iota(ROWS), torch.arange(ROWS))
    places = w.call(aten.index_put.default, w.leaf(torch.full((ROWS,), 7)), [order], counter)
    back = w.call(aten.index.Tensor, rows, [places])
    assert torch.equal(w.rows(back.declared), back.real)
    for value in (order, places):
        found = laid_out(w.builder, w.counts, value.declared)
        assert found is not None
        assert torch.equal(w.rows(found).long(), value.real)


def _other_numbers_than_places(w: Routed, rows: Value) -> None:
    del rows
    backwards = Value(w.builder.iota(ROWS, ROWS - 1, -1), torch.arange(ROWS).flip(0))
    w.call(aten.index_put.default, w.leaf(torch.zeros(ROWS).long()), [w.sort()[1]], backwards)


def _places_added_to_others(w: Routed, rows: Value) -> None:
    del rows
    counter = Value(w.builder.iota(ROWS), torch.arange(ROWS))
    w.call(aten.index_put.default, w.leaf(torch.ones(ROWS).long()), [w.sort()[1]], counter, True)


def _more_places_than_rows(w: Routed, rows: Value) -> None:
    del rows
    counter = Value(w.builder.iota(ROWS), torch.arange(ROWS))
    w.call(aten.index_put.default, w.leaf(torch.ones(ROWS + 1).long()), [w.sort()[1]], counter)


def test_groups_of_sorted_rows() -> None:
    w = Routed()
    _, order = w.sort()
    rows = w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [order])
    parts = w.call(aten.split_with_sizes.default, rows, list(SIZES))
    joined = w.call(aten.cat.default, list(parts))
    assert joined.declared.rows == rows.declared.rows
    a, b, c = SIZES
    middle = w.call(aten.slice.Tensor, rows, 0, a, a + b)
    w.call(aten.slice.Tensor, rows, 0, 0, a + b)
    w.call(aten.slice.Tensor, rows, 0, a)
    w.call(aten.slice_backward.default, middle, [ROWS, WIDTH], 0, a, a + b, 1)
    rest = w.call(aten.new_zeros.default, rows, [ROWS - a - b - c, WIDTH])
    w.call(aten.cat.default, [joined, rest])


def test_grouped_products_of_sorted_rows() -> None:
    w = Routed()
    _, order = w.sort()
    rows = w.call(aten.index.Tensor, w.random(ROWS, 16), [order])
    w.builder.call = Call({"self": torch.int64}, None, torch.int64)
    ends = Value(dense(w.builder, aten.cumsum.default, w.sizes.declared, 0), w.sizes.real.cumsum(0).int())
    matrices = w.random(GROUPS, 16, 8)
    products = call_ragged(w.builder, w.counts, aten._grouped_mm.default,
                           [rows.declared, matrices.declared, ends.declared], {})  # fmt: skip
    stops = [0, *ends.real.tolist()]
    real = torch.cat([rows.real[s:e] @ matrices.real[k] for k, (s, e) in enumerate(itertools.pairwise(stops))])
    w.check(Value(products, real))
    turned = w.call(aten.t.default, rows)
    outer = call_ragged(w.builder, w.counts, aten._grouped_mm.default, [turned.declared, products, ends.declared], {})
    expected = [rows.real[s:e].T @ real[s:e] for s, e in itertools.pairwise(stops)]
    assert torch.allclose(w.rows(outer), torch.stack(expected))
    with pytest.raises(UnsupportedError):
        call_ragged(w.builder, w.counts, aten._grouped_mm.default,
                    [rows.declared, matrices.declared, w.sizes.declared], {})  # fmt: skip


@pytest.mark.parametrize("ends", [(0, GROUPS - 1), (-0.5, GROUPS), (1, 2)])
def test_histograms_of_sorted_rows(ends: tuple[float, float]) -> None:
    w = Routed()
    keys, order = w.sort()
    counted = Value(keys.declared, keys.real.double())
    found = w.call(aten.histc.default, counted, GROUPS, *ends)
    assert torch.equal(w.rows(found.declared), found.real)
    with pytest.raises(UnsupportedError):
        w.call(aten.histc.default, w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [order]), GROUPS, *ends)


def test_rows_overwritten_where_they_are_different() -> None:
    w = Routed()
    hit = w.call(aten.nonzero.default, Value(
        w.builder.equal(w.builder.reshape(w.chosen.declared, (TOKENS, CHOSEN)), 1), w.chosen.real.view(-1, CHOSEN) == 1
    ))  # fmt: skip
    token, slot = w.call(aten.unbind.int, hit, 1)
    table = w.random(TOKENS, WIDTH)
    values = w.call(aten.sin.default, w.call(aten.index.Tensor, w.random(TOKENS, WIDTH), [token]))
    found = w.call(aten.index_put.default, table, [token], values)
    assert torch.allclose(w.rows(found.declared), found.real)
    with pytest.raises(UnsupportedError):  # a slot is that of several tokens
        w.call(aten.index_put.default, table, [slot], values)
    mask = w.mask(TOKENS)
    chosen = w.call(aten.index.Tensor, w.random(TOKENS, WIDTH), [mask])
    found = w.call(aten.index_put.default, table, [mask], chosen)
    assert torch.allclose(w.rows(found.declared), found.real)


def _other_sizes(w: Routed, rows: Value) -> None:
    w.call(aten.split_with_sizes.default, rows, [SIZES[1], SIZES[0], SIZES[2]])


def _a_slice_elsewhere(w: Routed, rows: Value) -> None:
    w.call(aten.slice.Tensor, rows, 0, SIZES[1], SIZES[1] + SIZES[0])


def _rows_of_another_sort(w: Routed, rows: Value) -> None:
    order = w.call(aten.sort.stable, w.topk(w.random(TOKENS, GROUPS)), stable=True)[1]
    w.call(aten.index_put.default, w.random(ROWS, WIDTH), [order], rows)


def _rows_of_another_order(w: Routed, rows: Value) -> None:
    order = w.sort(stable=False)[1]
    w.call(aten.index_put.default, w.random(ROWS, WIDTH), [order], rows)


def _descending(w: Routed, rows: Value) -> None:
    del rows
    w.call(aten.sort.stable, w.chosen, stable=True, descending=True)


def _unbounded(w: Routed, rows: Value) -> None:
    del rows
    w.call(aten.sort.stable, w.leaf(torch.arange(ROWS)), stable=True)


def _parts_in_another_order(w: Routed, rows: Value) -> None:
    parts = w.call(aten.split_with_sizes.default, rows, list(SIZES))
    joined = w.call(aten.cat.default, list(reversed(parts)))
    w.call(aten.index_put.default, w.random(ROWS, WIDTH), [w.sort()[1]], joined)


REFUSED = [
    _other_sizes, _a_slice_elsewhere, _rows_of_another_sort, _rows_of_another_order, _descending, _unbounded,
    _parts_in_another_order, _other_numbers_than_places, _places_added_to_others, _more_places_than_rows,
]  # fmt: skip


@pytest.mark.parametrize("program", REFUSED)
def test_refused(program: Any) -> None:
    w = Routed()
    rows = w.call(aten.index.Tensor, w.random(ROWS, WIDTH), [w.sort()[1]])
    with pytest.raises(UnsupportedError):
        program(w, rows)


RANKS, EACH = 2, 2


class Exchanging:
    """Ranks that sort their rows by one of four groups, of which two are of each rank."""

    def __init__(self) -> None:
        self.pool = TermPool()
        self.b, self.counts = Builder(self.pool, (RANKS,)), Counts()
        generator = torch.Generator().manual_seed(3)
        self.scores = torch.randn(RANKS, TOKENS, RANKS * EACH, generator=generator)
        self.x = torch.randn(RANKS, TOKENS, WIDTH, generator=generator)
        views = {name: self.pool.leaf(name, tuple(getattr(self, name).shape)) for name in ("scores", "x")}
        chosen = dense(self.b, aten.topk.default, views["scores"], 1)[1]
        key = self.b.reshape(chosen, (TOKENS,))
        order = call_ragged(self.b, self.counts, aten.sort.stable, [key], {"stable": True})[1]
        self.b.call = Call({"indices": torch.int64})
        self.rows = call_ragged(self.b, self.counts, aten.index.Tensor, [views["x"], [order]], {})
        hot = self.b.equal(self.b.unsqueeze(key, 1), self.b.iota(RANKS * EACH))
        sent = self.b.sum(hot, [0])
        received = dense(self.b, c10d.all_to_all_single.default, sent, [EACH] * RANKS, [EACH] * RANKS, Group((0,)))
        for name, view in (("s", sent), ("r", received)):
            totals = self.b.sum(self.b.reshape(view, (RANKS, EACH)), [1])
            for rank in range(RANKS):
                self.counts.views[sympy.Symbol(f"{name}{rank}")] = self.b.select(totals, 0, rank)

    def exchange(self, rows: Ragged, received: str = "r", sent: str = "s") -> Ragged:
        sizes = [[sympy.Symbol(f"{name}{rank}") for rank in range(RANKS)] for name in (received, sent)]
        return call_ragged(self.b, self.counts, c10d.all_to_all_single.default, [rows, *sizes, Group((0,))], {})


def test_rows_exchanged_by_their_counts() -> None:
    e = Exchanging()
    found = e.exchange(e.rows)
    evaluator = Evaluator({"scores": e.scores, "x": e.x})
    values, present = evaluator.view(found.view), evaluator.view(found.rows.present)
    key = e.scores.argmax(-1)
    for rank in range(RANKS):
        sorted_rows = [(key[s].argsort(stable=True), s) for s in range(RANKS)]
        expected = [e.x[s, t] for order, s in sorted_rows for t in order if key[s, t] // EACH == rank]
        assert torch.equal(values[rank][present[rank] != 0], torch.stack(expected))
    back = e.exchange(found, received="s", sent="r")
    assert back.rows == e.rows.rows
    assert back.view == e.rows.view


@pytest.mark.parametrize("sizes", [("s", "r"), ("s", "s"), ("r", "r")])
def test_an_exchange_by_other_counts_is_refused(sizes: tuple[str, str]) -> None:
    e = Exchanging()
    with pytest.raises(UnsupportedError):
        e.exchange(e.rows, *sizes)


def test_rows_sorted_again_where_they_arrive() -> None:
    e = Exchanging()
    found = e.exchange(e.rows)
    own = e.exchange(Ragged(group_numbers(e.b, RANKS * EACH, TOKENS), 0, e.rows.rows))
    e.b.call = Call({"self": torch.int64}, None, torch.int64)
    local = call_ragged(e.b, e.counts, aten.remainder.Scalar, [own, EACH], {})
    places = call_ragged(e.b, e.counts, aten.sort.stable, [local], {"stable": True})[1]
    grouped = call_ragged(e.b, e.counts, aten.index.Tensor, [found, [places]], {})
    back = call_ragged(e.b, e.counts, aten.index_put.default, [found, [places], grouped], {})
    assert back.rows == found.rows
    evaluator = Evaluator({"scores": e.scores, "x": e.x})
    there = evaluator.view(found.rows.present) != 0
    assert torch.equal(evaluator.view(back.view)[there], evaluator.view(found.view)[there])
    values, present = evaluator.view(grouped.view), evaluator.view(grouped.rows.present) != 0
    before = evaluator.view(found.view)
    key = evaluator.view(local.view)
    for rank in range(RANKS):
        order = key[rank][there[rank]].argsort(stable=True)
        assert torch.equal(values[rank][present[rank]], before[rank][there[rank]][order])
    with pytest.raises(UnsupportedError):  # rows that are sorted already
        call_ragged(e.b, e.counts, aten.index.Tensor, [grouped, [places]], {})


def test_every_declaration_is_tried() -> None:
    own = {str(t) for t, d in ragged_declarations().items() if d.handler.__module__.endswith("sorted_rows")}
    assert own == {
        "aten.sort.stable", "aten.sort.default", "aten.histc.default", "aten._grouped_mm.default",
        "_c10d_functional.all_to_all_single.default",
    }  # fmt: skip
