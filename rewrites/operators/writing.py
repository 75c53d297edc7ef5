"""Writing by index where values meet: reductions of what meets, the last that is written, parts chosen by a mask.

Where no algebra says what the result is, the operator is taken as it is: it reads the written dimension wholly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators import known_places
from verifycompile.rewrites.operators.advanced_indexing import matches
from verifycompile.rewrites.operators.elementwise import cast, choose, require_exact, require_real
from verifycompile.rewrites.operators.index_writes import position
from verifycompile.rewrites.operators.scalar_rows import scalars_as_rows
from verifycompile.rewrites.operators.scatter import (
    dim_back,
    dim_last,
    require_equal_batch,
    rows_overwritten,
    scatter_add,
    written,
)
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten

REDUCED_SCATTER = Operation("scatter_reduced")
IS_INDEXED = Operation("is_indexed", indicator=True)
MASKED_SCATTER = Operation("masked_scatter")
MASKED_SCATTER_GRADIENT = Operation("masked_scatter_gradient", linear=frozenset({0}))


# ------------------------------------------------------------------------------------------------ reductions


def _position(b: Builder, view: View, dim: int) -> int:
    if b.rank(view) == 0 or 0 in b.shape(view):
        raise UnsupportedError(UNREPRESENTABLE, "a write to a tensor without dimensions or elements")
    return dim % b.rank(view)


def _reduced(b: Builder, view: View, dim: int, index: View, source: View, reduce: str, include_self: bool) -> View:
    require_real(b, "self", "src", "source")
    require_equal_batch(b, dim, view, index)
    operands = [dim_last(b, v, dim) for v in (view, index, written(b, source, index, dim))]
    result = b.core(
        REDUCED_SCATTER,
        (reduce, include_self),
        "*b v, *b i, *b i -> *b w",
        *operands,
        cores="v i",
        fresh={"w": b.shape(view)[dim]},
    )
    return dim_back(b, result, dim)


@operator(aten.scatter_reduce.two)
@scalars_as_rows
def scatter_reduce(b: Builder, self: View, dim: int, index: View, src: View, reduce: str, include_self: bool) -> View:
    if reduce == "sum" and include_self:
        return scatter_add(b, self, dim, index, src)
    return _reduced(b, self, _position(b, self, dim), index, src, reduce, include_self)


_SHORT = {"add": "sum", "multiply": "prod"}


@operator(aten.scatter.reduce)
def scatter_by(b: Builder, self: View, dim: int, index: View, src: View, reduce: str) -> View:
    return scatter_reduce(b, self, dim, index, src, _SHORT[reduce], True)


@operator(aten.scatter.value_reduce)
@scalars_as_rows
def scatter_value_by(b: Builder, self: View, dim: int, index: View, value: Number, reduce: str) -> View:
    require_exact(b, value=value)
    return scatter_reduce(b, self, dim, index, b.full(value, b.shape(index)), _SHORT[reduce], True)


@operator(aten.index_reduce.default)
@scalars_as_rows
def index_reduce(b: Builder, self: View, dim: int, index: View, source: View, reduce: str, include_self: bool) -> View:
    """One index for all other dimensions."""
    position = _position(b, self, dim)
    if b.rank(index) != 1 or b.rank(source) != b.rank(self):
        raise UnsupportedError(UNSUPPORTED, "index_reduce of scalars")
    wide = index
    for d in range(b.rank(self)):
        if d != position:
            wide = b.unsqueeze(wide, d)
    return _reduced(b, self, position, b.expand(wide, b.shape(source)), source, reduce, include_self)


# ------------------------------------------------------------------------------------------------ one value for all


def _indexed(b: Builder, view: View, position: int, index: View) -> View:
    """Whether an element's place along ``position`` is an index, which may count from the end."""
    row = b.unsqueeze(index, 0) if b.rank(index) == 0 else index
    size = b.shape(view)[position]
    mask = b.core(IS_INDEXED, (size,), "i -> w", row, cores="i", fresh={"w": size})
    for _ in range(b.rank(view) - position - 1):
        mask = b.unsqueeze(mask, -1)
    return mask


@operator(aten.index_fill.int_Scalar)
@scalars_as_rows
def index_fill(b: Builder, self: View, dim: int, index: View, value: Number) -> View:
    require_exact(b, value=value)
    return _filled(b, self, _position(b, self, dim), index, b.number(value))


@operator(aten.index_fill.int_Tensor)
@scalars_as_rows
def index_fill_tensor(b: Builder, self: View, dim: int, index: View, value: View) -> View:
    filling = cast(b, value, b.dtype_of("value"), b.dtype_of("self"))
    return _filled(b, self, _position(b, self, dim), index, filling)


def _filled(b: Builder, view: View, position: int, index: View, value: View) -> View:
    if b.rank(index) == 1:
        shape = b.shape(view)
        rows = b.expand(value, [*shape[:position], *b.shape(index), *shape[position + 1 :]])
        known = known_places.put(b, view, position, index, rows)
        if known is not None:
            return known
    return choose(b, _indexed(b, view, position, index), value, view)


# ------------------------------------------------------------------------------------------------ flat indices


def _flat(b: Builder, view: View) -> View:
    if 0 in b.shape(view):
        raise UnsupportedError(UNREPRESENTABLE, "places in a tensor without elements")
    return b.reshape(view, [product(b.shape(view))])


@operator(aten.put.default)
def put(b: Builder, self: View, index: View, source: View, accumulate: bool) -> View:
    flat, places, values = (_flat(b, view) for view in (self, index, source))
    size = b.shape(flat)[0]
    if b.shape(places) != b.shape(values):
        raise UnsupportedError(UNSUPPORTED, "a write of another number of elements than places")
    if accumulate:
        if not b.dtype_of("self").is_floating_point:
            raise UnsupportedError(UNSUPPORTED, f"a sum of what meets in one place, in {b.dtype_of('self')}")
        added = b.contraction("i v, i -> v", matches(b, places, size), values)
        return b.reshape(b.add(flat, added), b.shape(self))
    return b.reshape(rows_overwritten(b, flat, position(b, places, size), values, 0), b.shape(self))


# ------------------------------------------------------------------------------------------------ by a mask


def _rows(b: Builder, mask: View, shape: Sequence[Size], source: Sequence[Size]) -> int:
    """How many of the last dimensions the mask does not depend on, where rows of these are copied one by one."""
    count = 0
    while (
        count + 1 < min(len(shape), len(source) + 1)
        and not mask.uses(mask.rank - 1 - count)
        and tuple(source[len(source) - 1 - count :]) == tuple(shape[len(shape) - 1 - count :])
    ):
        count += 1
    return count


def _one_row(b: Builder, mask: View, shape: Sequence[Size], count: int) -> View:
    """The mask of rows, flat; ``count`` last dimensions, on which it does not depend, are left out."""
    inner = mask
    for _ in range(count):
        inner = b.select(inner, -1, 0)
    return b.reshape(inner, [product(shape[: len(shape) - count])])


@operator(aten.masked_scatter.default)
def masked_scatter(b: Builder, self: View, mask: View, source: View) -> View:
    """The elements of ``source``, in their order, where ``mask`` holds."""
    view, wide = b.aligned(self, mask)
    shape = tuple(t if s == 1 else s for s, t in zip(b.shape(view), b.shape(wide), strict=True))
    if 0 in (*shape, *b.shape(source)):
        raise UnsupportedError(UNREPRESENTABLE, "a write of nothing")
    view, wide = b.expand(view, shape), b.expand(wide, shape)
    count = _rows(b, wide, shape, b.shape(source))
    row = shape[len(shape) - count :]
    rows = product(shape[: len(shape) - count])
    names = " ".join(f"r{k}" for k in range(count))
    values = b.reshape(source, [product(b.shape(source)[: b.rank(source) - count]), *row])
    result = b.core(
        MASKED_SCATTER,
        (),
        f"v {names}, v, s {names} -> w {names}",
        b.reshape(view, [rows, *row]),
        _one_row(b, wide, shape, count),
        values,
        cores="v s",
        fresh={"w": rows},
    )
    return b.reshape(result, shape)


@operator(aten.masked_scatter_backward.default)
def masked_scatter_backward(b: Builder, grad_output: View, mask: View, sizes: Sequence[Size]) -> View:
    """The elements where ``mask`` holds, then zeros."""
    require_real(b, "grad_output")
    gradient, wide = b.aligned(grad_output, mask)
    shape = b.shape(gradient)
    fits = all(s in (1, t) for s, t in zip(b.shape(wide), shape, strict=True))
    if not fits or 0 in (*shape, *sizes) or any(isinstance(s, int) and s < 0 for s in sizes):
        raise UnsupportedError(UNREPRESENTABLE, "a gradient of a write of nothing, or of a mask of another shape")
    wide = b.expand(wide, shape)
    count = _rows(b, wide, shape, sizes)
    row = shape[len(shape) - count :]
    names = " ".join(f"r{k}" for k in range(count))
    result = b.core(
        MASKED_SCATTER_GRADIENT,
        (),
        f"v {names}, v -> w {names}",
        b.reshape(gradient, [product(shape[: len(shape) - count]), *row]),
        _one_row(b, wide, shape, count),
        cores="v",
        fresh={"w": product(sizes[: len(sizes) - count])},
    )
    return b.reshape(result, sizes)
