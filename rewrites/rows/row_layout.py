"""Layout of tensors with a number of rows that is read from data: the dimension of the rows stays one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir.size import product
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.rows.ragged import ragged
from verifycompile.rewrites.rows.row_values import Counts, Ragged
from verifycompile.rewrites.rows.rows import dense, require

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


@ragged(aten.t.default)
def t(b: Builder, counts: Counts, self: Any) -> Ragged:
    del counts
    return Ragged(b.transpose(self.view, 0, 1), 1 - self.dim, self.rows) if b.rank(self.view) == 2 else self


@ragged(aten.transpose.int)
def transpose(b: Builder, counts: Counts, self: Any, dim0: int, dim1: int) -> Ragged:
    del counts
    rank = b.rank(self.view)
    first, second = dim0 % rank, dim1 % rank
    place = second if self.dim == first else first if self.dim == second else self.dim
    return Ragged(b.transpose(self.view, dim0, dim1), place, self.rows)


@ragged(aten.permute.default)
def permute(b: Builder, counts: Counts, self: Any, dims: Sequence[int]) -> Ragged:
    del counts
    order = [d % b.rank(self.view) for d in dims]
    return Ragged(b.permute(self.view, order), order.index(self.dim), self.rows)


@ragged(aten.unsqueeze.default)
def unsqueeze(b: Builder, counts: Counts, self: Any, dim: int) -> Ragged:
    del counts
    place = dim % (b.rank(self.view) + 1)
    return Ragged(b.unsqueeze(self.view, place), self.dim + (place <= self.dim), self.rows)


@ragged(aten.squeeze.dim)
def squeeze(b: Builder, counts: Counts, self: Any, dim: int) -> Ragged:
    del counts
    place = dim % b.rank(self.view)
    # Whether a single row is there is not known.
    require(place != self.dim, "a removal of")
    kept = b.shape(self.view)[place] != 1
    return self if kept else Ragged(b.squeeze(self.view, [place]), self.dim - (place < self.dim), self.rows)


@ragged(aten.select.int)
def select(b: Builder, counts: Counts, self: Any, dim: int, index: Number) -> Ragged:
    del counts
    place = dim % b.rank(self.view)
    require(place != self.dim, "one element of")
    return Ragged(dense(b, aten.select.int, self.view, place, index), self.dim - (place < self.dim), self.rows)


@ragged(aten.unbind.int)
def unbind(b: Builder, counts: Counts, self: Any, dim: int) -> tuple[Ragged, ...]:
    place = dim % b.rank(self.view)
    size = b.shape(self.view)[place]
    require(place != self.dim and isinstance(size, int), "all elements of")
    assert isinstance(size, int)
    return tuple(select(b, counts, self, place, k) for k in range(size))


@ragged(aten.view.default, aten._unsafe_view.default)
def view(b: Builder, counts: Counts, self: Any, size: Sequence[Number]) -> Ragged:
    return _reshaped(b, counts, self, size)


@ragged(aten.reshape.default)
def reshape(b: Builder, counts: Counts, self: Any, shape: Sequence[Number]) -> Ragged:
    return _reshaped(b, counts, self, shape)


def _reshaped(b: Builder, counts: Counts, value: Ragged, size: Sequence[Number]) -> Ragged:
    """Another shape of every row: the dimension of the rows stays where the elements before and after it are kept."""
    shape = b.shape(value.view)
    dims = [d for d, n in enumerate(size) if counts.occur_in(n) or n == -1]
    if not dims and value.rows in counts.sortings:
        dims = [d for d, n in enumerate(size) if n == counts.sortings[value.rows].length][:1]
    require(len(dims) == 1, "another shape of")
    (dim,) = dims
    before, after = list(size[:dim]), list(size[dim + 1 :])
    kept = product(before) == product(shape[: value.dim]) and product(after) == product(shape[value.dim + 1 :])  # pyright: ignore[reportArgumentType]  # sizes are whole numbers or expressions
    require(kept, "another shape of")
    return Ragged(b.reshape(value.view, [*before, value.rows.total, *after]), dim, value.rows)  # pyright: ignore[reportArgumentType]  # sizes are whole numbers or expressions


@ragged(aten.expand.default)
def expand(b: Builder, counts: Counts, self: Any, size: Sequence[Number]) -> Ragged:
    require(isinstance(self, Ragged), "a repetition along")
    added = len(size) - b.rank(self.view)
    dim = self.dim + added
    others = [d for d, n in enumerate(size) if counts.occur_in(n) and d != dim]
    require(not others, "a repetition along")
    shape = [self.rows.total if d == dim else n for d, n in enumerate(size)]
    return Ragged(b.expand(self.view, shape), dim, self.rows)  # pyright: ignore[reportArgumentType]  # sizes are whole numbers or expressions
