"""Every operator on tensors whose size is read from data, against torch on the rows that are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.registry import Group, UnsupportedError
from verifycompile.rewrites.rows.ragged import call_ragged, ragged_declarations
from verifycompile.rewrites.rows.row_values import Counts, Filled, Ragged
from verifycompile.torch_interface.operators.schema import names_of

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
ROWS, WIDTH = 7, 3
A, B = (sympy.Symbol(name, integer=True) for name in "ab")
NUMBERS = ({A: 2, B: 3}, {A: 0, B: 7}, {A: 4, B: 0}, {A: 1, B: 6})


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor as the declarations have it, and as torch has it."""

    declared: Any
    real: Any


class World:
    """Declared values beside real ones; ``numbers``: what the tensors hold that are read as sizes."""

    def __init__(self, numbers: Mapping[sympy.Symbol, int]) -> None:
        self.pool, self.numbers = TermPool(), numbers
        self.builder, self.counts = Builder(self.pool), Counts()
        self.leaves: dict[str, torch.Tensor] = {}
        for symbol, number in numbers.items():
            self.counts.views[symbol] = self.leaf(torch.tensor(number)).declared
            self.counts.lengths.add(symbol)
        self.generator = torch.Generator().manual_seed(0)

    def leaf(self, real: torch.Tensor) -> Value:
        name = f"x{len(self.leaves)}"
        self.leaves[name] = real
        whole = not real.is_floating_point() and real.dtype is not torch.bool
        view = self.pool.leaf(name, tuple(real.shape), indicator=real.dtype is torch.bool, whole=whole)
        return Value(view, real)

    def random(self, *shape: int) -> Value:
        return self.leaf(torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def mask(self, *shape: int) -> Value:
        return self.leaf(torch.rand(shape, generator=self.generator) > 0.5)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        declared = [_part(a, "declared") for a in args]
        real = [_part(self._number(a), "real") for a in args]
        firsts = (a[0] if isinstance(a, list) else a for a in real)
        named = zip(names_of(target), firsts, strict=False)
        self.builder.call = Call({name: a.dtype for name, a in named if isinstance(a, torch.Tensor)})
        keywords = {name: _part(self._number(value), "real") for name, value in kwargs.items()}
        found = call_ragged(self.builder, self.counts, target, declared, kwargs)
        expected = target(*real, **keywords)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        values = tuple(Value(*pair) for pair in pairs)
        for value in values:
            self.check(value)
        return values if isinstance(found, tuple) else values[0]

    def check(self, value: Value) -> None:
        found = self.rows(value.declared)
        assert found.shape == value.real.shape
        assert torch.allclose(found, value.real.to(found.dtype))

    def rows(self, value: Any) -> torch.Tensor:
        evaluator = Evaluator(self.leaves)
        if isinstance(value, View):
            return evaluator.view(value)
        if isinstance(value, Filled):
            row = evaluator.view(value.row)
            return row.expand([self._number(value.length) if d == value.dim else n for d, n in enumerate(row.shape)])
        there = evaluator.view(value.rows.present) != 0
        return evaluator.view(value.view).index_select(value.dim, there.nonzero()[:, 0])

    def _number(self, value: Any) -> Any:
        if isinstance(value, sympy.Basic):
            return int(value.xreplace(dict(self.numbers)))  # pyright: ignore[reportArgumentType]
        return [self._number(v) for v in value] if isinstance(value, list) else value

    def parts(self, x: Value) -> tuple[Value, Value]:
        """Two consecutive parts of the rows."""
        some = self.call(aten.slice.Tensor, x, 0, 0, A + B)
        return self.call(aten.split_with_sizes.default, some, [A, B])


def _part(value: Any, name: str) -> Any:
    if isinstance(value, Value):
        return getattr(value, name)
    return [_part(v, name) for v in value] if isinstance(value, list) else value


def _parts_put_together(w: World) -> None:
    x = w.random(ROWS, WIDTH)
    first, second = w.parts(x)
    joined = w.call(aten.cat.default, [w.call(aten.relu.default, first), w.call(aten.sin.default, second)])
    w.call(aten.slice.Tensor, joined, 1, 0, 2)
    rest = w.call(aten.new_zeros.default, x, [ROWS - A - B, WIDTH])
    whole = w.call(aten.cat.default, [joined, rest])
    assert isinstance(whole.declared, View)
    w.call(aten.cat.default, [joined, w.call(aten.zeros.default, [ROWS - A - B, WIDTH])])
    w.call(aten.cat.default, [first, first], 1)


def _whole_split(w: World) -> None:
    x = w.random(ROWS, WIDTH)
    pieces = w.call(aten.split_with_sizes.default, x, [A, B, ROWS - A - B])
    whole = w.call(aten.cat.default, list(pieces))
    assert isinstance(whole.declared, View)


def _pointwise(w: World) -> None:
    first, second = w.parts(w.random(ROWS, WIDTH))
    other, _ = w.parts(w.random(ROWS, WIDTH))
    w.call(aten.mul.Tensor, first, other)
    w.call(aten.add.Tensor, second, w.random(WIDTH))
    w.call(aten.zeros_like.default, first)
    w.call(aten.copy.default, w.call(aten.clone.default, first), other)


def _products(w: World) -> None:
    first, _ = w.parts(w.random(ROWS, WIDTH))
    other, _ = w.parts(w.random(ROWS, WIDTH))
    w.call(aten.mm.default, first, w.random(WIDTH, 2))
    w.call(aten.addmm.default, w.random(2), first, w.random(WIDTH, 2))
    turned = w.call(aten.t.default, first)
    w.call(aten.mm.default, turned, other)
    w.call(aten.mm.default, w.random(2, WIDTH), turned)
    w.call(aten.addmm.default, w.random(WIDTH), turned, other, beta=2, alpha=3)
    w.call(aten.sum.dim_IntList, first, [0], True)
    w.call(aten.sum.dim_IntList, first, [1])


def _layouts(w: World) -> None:
    _, second = w.parts(w.random(ROWS, 2 * WIDTH))
    cube = w.call(aten.view.default, second, [B, 2, WIDTH])
    w.call(aten._unsafe_view.default, cube, [B, 2 * WIDTH])
    w.call(aten.reshape.default, cube, [B, WIDTH, 2])
    w.call(aten.permute.default, cube, [2, 0, 1])
    w.call(aten.transpose.int, cube, 0, -1)
    wide = w.call(aten.unsqueeze.default, cube, 0)
    w.call(aten.squeeze.dim, wide, 0)
    w.call(aten.squeeze.dim, wide, 2)
    w.call(aten.select.int, cube, 1, 1)
    w.call(aten.unbind.int, cube, 2)
    w.call(aten.expand.default, wide, [4, B, 2, WIDTH])
    w.call(aten.split_with_sizes.default, second, [2, 2 * WIDTH - 2], 1)
    w.call(aten.split.Tensor, second, WIDTH, -1)


def _places(w: World) -> None:
    x, mask = w.random(ROWS, WIDTH), w.mask(ROWS, WIDTH)
    places = w.call(aten.nonzero.default, mask)
    row, column = w.call(aten.unbind.int, places, 1)
    w.call(aten.index.Tensor, x, [row])
    w.call(aten.index_select.default, x, 0, row)
    values = w.call(aten.index.Tensor, x, [row, column])
    w.call(aten.index_put.default, w.random(ROWS, WIDTH), [row, column], values, True)
    taken = w.call(aten.index.Tensor, x, [row])
    w.call(aten.index_add.default, w.random(ROWS, WIDTH), 0, row, taken, alpha=2)
    w.call(aten.index.Tensor, x, [w.mask(ROWS)])
    w.call(aten.nonzero.default, w.mask(ROWS))
    table, some = w.random(ROWS, WIDTH), w.mask(ROWS)
    values = w.call(aten.index.Tensor, x, [some])
    for accumulate in (False, True):
        found = w.call(aten.index_put.default, table, [some], values, accumulate)
        assert torch.allclose(w.rows(found.declared), found.real)
    pairs = w.call(aten.index.Tensor, w.random(ROWS, WIDTH, 2), [mask])
    w.call(aten.index_put.default, w.random(ROWS, WIDTH, 2), [mask], pairs)


def _gradient_of_a_slice(w: World) -> None:
    some = w.call(aten.slice.Tensor, w.random(ROWS, WIDTH), 0, A, A + B)
    w.call(aten.slice_backward.default, some, [ROWS, WIDTH], 0, A, A + B, 1)
    w.call(aten.slice.Tensor, w.random(ROWS, WIDTH), 0, A)
    rest, second = w.parts(w.random(ROWS, WIDTH))
    w.call(aten.slice_backward.default, second, [B, 2 * WIDTH], 1, 1, 2 * WIDTH, 2)
    w.call(aten.select_backward.default, second, [2, B, WIDTH], 0, 1)
    w.call(aten.select_backward.default, second, [B, WIDTH, 3], -1, -1)
    w.call(aten.slice_backward.default, rest, [ROWS, WIDTH], 0, 0, A, 1)


PROGRAMS: list[Callable[[World], None]] = [
    _parts_put_together, _whole_split, _pointwise, _products, _layouts, _places, _gradient_of_a_slice,
]  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_value(program: Callable[[World], None], numbers: Mapping[sympy.Symbol, int]) -> None:
    program(World(numbers))


def test_every_declaration_is_tried() -> None:
    names = {name for program in PROGRAMS for name in (*program.__code__.co_names, *World.parts.__code__.co_names)}
    collectives = {c10d.all_reduce.default, c10d.wait_tensor.default}
    same = {aten.unsafe_split_with_sizes.default, aten.split_with_sizes_copy.default, aten._unsafe_index_put.default}
    elsewhere = {aten.gather.default, aten.scatter_add.default, aten.bmm.default}  # test_sorted_rows
    declared = {t for t, d in ragged_declarations().items() if not d.handler.__module__.endswith("sorted_rows")}
    untried = [t for t in declared - collectives - same - elsewhere if str(t).split(".")[1] not in names]
    assert not untried


def _other_rows(w: World, first: Value, second: Value) -> None:
    w.call(aten.add.Tensor, first, second)


def _rows_in_another_order(w: World, first: Value, second: Value) -> None:
    w.call(aten.cat.default, [second, first])


def _a_sum_over_other_rows(w: World, first: Value, second: Value) -> None:
    w.call(aten.mm.default, w.call(aten.t.default, first), second)


def _softmax_over_rows(w: World, first: Value, _: Value) -> None:
    w.call(aten._softmax.default, first, 0, False)


def _a_negative_bound(w: World, first: Value, _: Value) -> None:
    w.call(aten.slice.Tensor, first, 0, -A, 2**63 - 1)


def _a_whole_tensor_beside(w: World, first: Value, _: Value) -> None:
    w.call(aten.add.Tensor, first, w.random(ROWS, WIDTH))


def _parts_that_may_overlap(w: World, _: Value, __: Value) -> None:
    x = w.random(ROWS, WIDTH)
    w.call(aten.cat.default, [w.call(aten.slice.Tensor, x, 0, A, B), w.call(aten.slice.Tensor, x, 0, B, A + B)])


def _a_longer_slice(w: World, first: Value, _: Value) -> None:
    w.call(aten.slice.Tensor, first, 0, 0, A + B)


@pytest.mark.parametrize(
    "program",
    [
        _other_rows, _rows_in_another_order, _a_sum_over_other_rows, _softmax_over_rows, _a_negative_bound,
        _a_whole_tensor_beside, _a_longer_slice, _parts_that_may_overlap,
    ],
)  # fmt: skip
def test_refused(program: Callable[[World, Value, Value], None]) -> None:
    world = World(NUMBERS[0])
    first, second = world.parts(world.random(ROWS, WIDTH))
    with pytest.raises(UnsupportedError):
        program(world, first, second)


def test_all_reduce_needs_the_same_rows_on_all_ranks() -> None:
    pool = TermPool()
    builder, counts = Builder(pool, (2,)), Counts()
    x = pool.leaf("x", (2, ROWS))
    counts.lengths |= {A, B}
    counts.views[A] = builder.expand(builder.number(3), ())
    counts.views[B] = pool.leaf("own", (2,), whole=True)
    for symbol, same in ((A, True), (B, False)):
        part = call_ragged(builder, counts, aten.slice.Tensor, [x, 0, 0, symbol], {})
        assert isinstance(part, Ragged)
        if same:
            found = call_ragged(builder, counts, c10d.all_reduce.default, [part, "sum", Group((0,))], {})
            assert found.rows == part.rows
            assert found.view == call_whole_sum(builder, x)
            assert call_ragged(builder, counts, c10d.wait_tensor.default, [found], {}) is found
            continue
        with pytest.raises(UnsupportedError):
            call_ragged(builder, counts, c10d.all_reduce.default, [part, "sum", Group((0,))], {})


def call_whole_sum(builder: Builder, x: View) -> View:
    from verifycompile.rewrites.operators.collective import reduce_over

    return reduce_over(builder, x, "sum", Group((0,)))
