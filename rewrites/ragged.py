"""Tensors of a size that the program reads from data: tokens of one expert, places where a mask holds.

Such a tensor is some rows, in order, of a tensor whose size is known: the rows at which an indicator is one. What works
on every row alone works on all of them; a sum over rows, or a product that contracts them, takes the indicator as a
factor. Operators not declared here are unsupported on such tensors: what an operator does to rows that are not there
must be known.

Rows between two numbers are written by the numbers as well, so that consecutive parts can be put together again.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.collective import reduce_over
from verifycompile.rewrites.registry import (
    UNREPRESENTABLE,
    Declaration,
    Handler,
    UnsupportedError,
    bind,
    declaration_of,
)
from verifycompile.rewrites.values import Group
from verifycompile.torch_interface.schema import is_pointwise

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

_FAR = 2**31
"""A bound of a slice beyond every size means the end."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """``present``: for each of ``total`` rows whether it is there.

    ``span``: the first row and the one past the last, where the second is known to be none before the first.
    """

    total: Size
    present: View
    span: tuple[sympy.Expr, sympy.Expr] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """The ``rows`` of ``view`` along its tensor dimension ``dim``."""

    view: View
    dim: int
    rows: Rows


@dataclasses.dataclass(frozen=True, eq=False)
class Filled:
    """``length`` equal rows along ``dim``, each of them ``row``, whose size along ``dim`` is one."""

    row: View
    dim: int
    length: sympy.Expr


class Counts:
    """Numbers that one program reads from tensors. ``views``: their values. ``lengths``: those that are sizes."""

    def __init__(self) -> None:
        self.views: dict[sympy.Basic, View] = {}
        self.lengths: set[sympy.Basic] = set()

    def occur_in(self, value: object) -> bool:
        """Whether a number is an expression of them."""
        return isinstance(value, sympy.Basic) and bool(value.free_symbols & self.views.keys())

    def number(self, b: Builder, value: sympy.Expr) -> View:
        """A linear expression of them as a tensor without dimensions."""
        expanded = sympy.expand(value)
        parts: list[tuple[Any, Any]] = []
        for symbol, view in self.views.items():
            factor = expanded.coeff(symbol, 1)
            if factor != 0:
                parts.append((int(factor), view))
                expanded -= factor * symbol
        rest = sympy.expand(expanded)
        if not rest.is_Integer:
            raise UnsupportedError(UNREPRESENTABLE, f"`{value}` is not linear in numbers read from tensors")
        return b.combination(*parts, (int(rest), 1))

    def at_least(self, high: sympy.Expr, low: sympy.Expr) -> bool:
        """Whether ``low <= high`` because their difference is a sum of sizes."""
        difference = sympy.expand(high - low)
        if difference == 0:
            return True
        terms = difference.as_coefficients_dict()
        return all(factor >= 0 and (term == 1 or term in self.lengths) for term, factor in terms.items())


_HANDLERS: dict[object, Declaration] = {}
_POINTWISE_BESIDES = frozenset(
    {
        aten._to_copy.default, aten.detach.default, aten.alias.default, aten.zeros_like.default,
        aten.ones_like.default, aten.full_like.default,
    }
)  # fmt: skip
"""Work row by row without torch's tag for it."""


def ragged(*targets: object) -> Callable[[Handler], Handler]:
    """Register a handler ``(builder, counts, arguments by their schema names) -> Ragged | View | Filled``."""

    def register(handler: Handler) -> Handler:
        names = frozenset(list(inspect.signature(handler).parameters)[2:])
        location = f"{handler.__code__.co_filename}:{handler.__code__.co_firstlineno}"
        for target in targets:
            _HANDLERS[target] = Declaration(target, handler, names, location)
        return handler

    return register


def ragged_declarations() -> Mapping[object, Declaration]:
    """All declarations, by target."""
    return dict(_HANDLERS)


def call_ragged(b: Builder, counts: Counts, target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator with ragged operands, sizes or results."""
    declaration = _HANDLERS.get(target)
    if declaration is not None:
        return declaration.handler(b, counts, **bind(declaration, args, kwargs))
    plain = declaration_of(target)
    if plain is not None and (is_pointwise(target) or target in _POINTWISE_BESIDES):
        return _pointwise(b, plain, bind(plain, args, kwargs))
    raise UnsupportedError(UNREPRESENTABLE, f"`{target}` on a dimension whose size is read from a tensor")


# ------------------------------------------------------------------------------------------------ helpers


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise UnsupportedError(UNREPRESENTABLE, f"{what} a dimension whose size is read from a tensor")


def dense(b: Builder, target: object, *args: Any, **kwargs: Any) -> Any:
    """The operator on whole tensors."""
    declaration = declaration_of(target)
    assert declaration is not None
    return declaration.handler(b, **bind(declaration, args, kwargs))


def masked(b: Builder, value: Ragged) -> View:
    """The whole tensor, with zeros for the rows that are not there."""
    mask = value.rows.present
    for _ in range(b.rank(value.view) - 1 - value.dim):
        mask = b.unsqueeze(mask, -1)
    return b.mul(value.view, mask)


def _between(b: Builder, counts: Counts, total: Size, start: sympy.Expr, stop: sympy.Expr) -> Rows:
    position = b.iota(total)
    factors: list[View] = []
    if start != 0:
        factors.append(b.less_equal(b.unsqueeze(counts.number(b, start), 0), position))
    if stop != total:
        factors.append(b.less(position, b.unsqueeze(counts.number(b, stop), 0)))
    present = b.mul(*factors) if factors else b.full(1, (total,))
    return Rows(total, b.expand(present, (total,)), (start, stop))


def _pointwise(b: Builder, declaration: Declaration, bound: dict[str, Any]) -> Ragged:
    operands = [value for value in bound.values() if isinstance(value, Ragged)]
    _require(bool(operands), f"`{declaration.target}` makes")
    first = operands[0]
    from_end = first.dim - b.rank(first.view)
    for operand in operands:
        same = operand.dim - b.rank(operand.view) == from_end and operand.rows == first.rows
        _require(same, f"`{declaration.target}` pairs other rows along")
    whole: dict[str, Any] = {}
    for name, value in bound.items():
        if isinstance(value, View) and b.rank(value) >= -from_end:
            _require(b.shape(value)[from_end] == 1, f"`{declaration.target}` pairs other rows along")
        _require(not isinstance(value, (sympy.Basic, Filled)), f"`{declaration.target}` computes with the size of")
        whole[name] = value.view if isinstance(value, Ragged) else value
    shapes = [b.shape(value) for value in whole.values() if isinstance(value, View)]
    rank = max(map(len, shapes))
    shape = tuple(next((s[k] for s in shapes if len(s) >= -k and s[k] != 1), 1) for k in range(-rank, 0))
    b.call = dataclasses.replace(b.call, shape=shape)
    result = declaration.handler(b, **whole)
    return Ragged(result, rank + from_end, first.rows)


# ------------------------------------------------------------------------------------------------ parts of a tensor


def _whole_rows(b: Builder, counts: Counts, value: View | Ragged, dim: int) -> tuple[View, Rows]:
    """The tensor and the rows of it along ``dim``, which are between two numbers."""
    view = value.view if isinstance(value, Ragged) else value
    total = b.shape(view)[dim]
    if isinstance(value, View):
        return view, _between(b, counts, total, sympy.Integer(0), sympy.sympify(total))
    _require(value.dim == dim and value.rows.span is not None, "a part of rows chosen one by one along")
    return view, value.rows


@ragged(aten.slice.Tensor)
def slice_rows(
    b: Builder, counts: Counts, self: Any, dim: int, start: Number | None, end: Number | None, step: Number
) -> Ragged | View:
    rank = b.rank(self.view if isinstance(self, Ragged) else self)
    dim %= rank
    first, last = (sympy.sympify(0 if start is None else start), None if end is None else sympy.sympify(end))
    if isinstance(self, Ragged) and dim != self.dim:
        return Ragged(dense(b, aten.slice.Tensor, self.view, dim, start, end, step), self.dim, self.rows)
    _require(step == 1, "every so many elements of")
    if isinstance(self, Ragged) and first == 0 and (last is None or (last.is_Integer and last >= _FAR)):
        return self
    view, rows = _whole_rows(b, counts, self, dim)
    assert rows.span is not None
    low, high = rows.span
    # Negative bounds count from the end; a sum of sizes is none.
    _require(counts.at_least(first, sympy.Integer(0)), "a part of")
    if last is None or (last.is_Integer and last >= _FAR):
        part = _between(b, counts, rows.total, sympy.expand(low + first), high)
        return Ragged(view, dim, part if counts.at_least(high, low + first) else dataclasses.replace(part, span=None))
    _require(counts.at_least(last, sympy.Integer(0)), "a part of")
    stop = low + last
    # Past the last row a slice ends; past the end of the whole tensor there are no rows to be present.
    _require(high == rows.total or counts.at_least(high, stop), "a part, which may be longer, of")
    part = _between(b, counts, rows.total, sympy.expand(low + first), sympy.expand(stop))
    return Ragged(view, dim, part if counts.at_least(last, first) else dataclasses.replace(part, span=None))


@ragged(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default, aten.split_with_sizes_copy.default)
def split_rows(b: Builder, counts: Counts, self: Any, split_sizes: Sequence[Number], dim: int) -> tuple[Ragged, ...]:
    """torch raises an error unless the sizes are none below zero and sum up to the length of the tensor."""
    rank = b.rank(self.view if isinstance(self, Ragged) else self)
    dim %= rank
    if isinstance(self, Ragged) and dim != self.dim:
        pieces = dense(b, aten.split_with_sizes.default, self.view, split_sizes, dim)
        starts = itertools.accumulate(pieces.lengths, initial=0)
        views = [b.narrow(pieces.view, dim, at, n) for at, n in zip(starts, pieces.lengths, strict=False)]
        return tuple(Ragged(view, self.dim, self.rows) for view in views)
    view, rows = _whole_rows(b, counts, self, dim)
    assert rows.span is not None
    edges = [rows.span[0]]
    for size in split_sizes:
        edges.append(sympy.expand(edges[-1] + sympy.sympify(size)))
    edges[-1] = rows.span[1]
    return tuple(
        Ragged(view, dim, _between(b, counts, rows.total, low, high)) for low, high in itertools.pairwise(edges)
    )


@ragged(aten.cat.default)
def cat_rows(b: Builder, counts: Counts, tensors: Sequence[Any], dim: int) -> Ragged | View:
    """Consecutive rows of tensors of one size, and equal rows after them."""
    first = tensors[0]
    _require(isinstance(first, Ragged), "a concatenation that begins with other than rows of")
    dim %= b.rank(first.view)
    if dim != first.dim:
        _require(all(isinstance(t, Ragged) and t.dim == first.dim and t.rows == first.rows for t in tensors), "cat of")
        return Ragged(b.concatenate([t.view for t in tensors], dim), first.dim, first.rows)
    span = first.rows.span
    _require(span is not None, "a concatenation of rows chosen one by one along")
    assert span is not None
    start: sympy.Expr = span[0]
    stop: sympy.Expr = span[1]
    total, parts = first.rows.total, [masked(b, first)]
    value: Any
    for tensor in tensors[1:]:
        if isinstance(tensor, Filled):
            high = sympy.expand(stop + tensor.length)
            value = Ragged(tensor.row, dim, _between(b, counts, total, stop, high))
        else:
            value, next_span = tensor, tensor.rows.span if isinstance(tensor, Ragged) else None
            if next_span is None or value.dim != dim or value.rows.total != total:
                raise UnsupportedError(UNREPRESENTABLE, "a concatenation of different tensors whose sizes are read")
            _require(next_span[0] == stop, "a concatenation of rows that do not follow each other along")
            high = next_span[1]
        parts.append(masked(b, value))
        stop = high
    whole = b.add(*parts)
    if start == 0 and stop == total:
        return whole
    return Ragged(whole, dim, _between(b, counts, total, start, stop))


@ragged(aten.slice_backward.default)
def slice_backward(
    b: Builder,
    counts: Counts,
    grad_output: Any,
    input_sizes: Sequence[Number],
    dim: int,
    start: Number,
    end: Number,
    step: Number,
) -> View:
    """The gradient at the rows that the slice read."""
    _require(isinstance(grad_output, Ragged) and step == 1, "the gradient of a part of")
    dim %= len(input_sizes)
    total, span = input_sizes[dim], grad_output.rows.span
    fits = grad_output.dim == dim and grad_output.rows.total == total and span is not None
    _require(fits, "the gradient of a part of")
    assert span is not None
    first, last = sympy.sympify(start), sympy.sympify(end)
    to_end = span[1] == total and last.is_Integer and last >= _FAR
    _require(span[0] == first and (span[1] == last or to_end), "the gradient of other rows along")
    del counts
    return masked(b, grad_output)


@ragged(aten.new_zeros.default)
def new_zeros(b: Builder, counts: Counts, self: Any, size: Sequence[Number], dtype: Any) -> Filled | View:
    del self, dtype
    return _filled(b, counts, size)


@ragged(aten.zeros.default)
def zeros(b: Builder, counts: Counts, size: Sequence[Number], dtype: Any) -> Filled | View:
    del dtype
    return _filled(b, counts, size)


def _filled(b: Builder, counts: Counts, size: Sequence[Number]) -> Filled | View:
    dims = [d for d, length in enumerate(size) if counts.occur_in(length)]
    _require(len(dims) <= 1, "zeros with more than")
    if not dims:
        return b.full(0, [normalize_size(n) for n in size])  # pyright: ignore[reportArgumentType]
    shape = [1 if d in dims else n for d, n in enumerate(size)]
    return Filled(b.full(0, shape), dims[0], sympy.sympify(size[dims[0]]))  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------ rows one by one


@ragged(aten.nonzero.default)
def nonzero(b: Builder, counts: Counts, self: Any) -> Ragged:
    """The places where a boolean tensor is true, in row-major order."""
    del counts
    _require(isinstance(self, View) and is_indicator(self) and b.rank(self) > 0, "places of values along")
    shape = b.shape(self)
    total = product(shape)
    columns: list[View] = []
    for dim, size in enumerate(shape):
        place = b.iota(size)
        for _ in range(len(shape) - 1 - dim):
            place = b.unsqueeze(place, -1)
        for _ in range(dim):
            place = b.unsqueeze(place, 0)
        columns.append(b.unsqueeze(b.reshape(b.expand(place, shape), (total,)), 1))
    view = columns[0] if len(columns) == 1 else b.concatenate(columns, 1)
    return Ragged(view, 0, Rows(total, b.reshape(self, (total,)), None))


@ragged(aten.index.Tensor)
def index(b: Builder, counts: Counts, self: Any, indices: Sequence[Any]) -> Ragged:
    """Rows of a tensor at ragged places, or where a mask holds."""
    del counts
    _require(isinstance(self, View), "a choice among the rows of")
    given = [k for k, place in enumerate(indices) if place is not None]
    if given == [0] and isinstance(indices[0], View) and b.call.dtypes.get("indices") is torch.bool:
        mask = indices[0]
        rank = b.rank(mask)
        shape = b.shape(self)
        total = product(shape[:rank])
        flat = b.reshape(self, (total, *shape[rank:]))
        return Ragged(flat, 0, Rows(total, b.reshape(mask, (total,)), None))
    places = [indices[k] for k in given]
    first = places[0]
    _require(isinstance(first, Ragged) and b.rank(first.view) == 1, "a choice along")
    _require(all(isinstance(p, Ragged) and b.rank(p.view) == 1 and p.rows == first.rows for p in places), "a choice by")
    _require(given == list(range(given[0], given[-1] + 1)), "a choice along dimensions that are no neighbours, by")
    wholes = [place.view if isinstance(place, Ragged) else place for place in indices]
    return Ragged(dense(b, aten.index.Tensor, self, wholes), given[0], first.rows)


@ragged(aten.index_select.default)
def index_select(b: Builder, counts: Counts, self: Any, dim: int, index: Any) -> Ragged:
    """Rows of a tensor at ragged places."""
    del counts
    _require(isinstance(self, View) and isinstance(index, Ragged), "a choice among the rows of")
    chosen = dense(b, aten.index_select.default, self, dim, index.view)
    return Ragged(chosen, dim % b.rank(self), index.rows)


@ragged(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, counts: Counts, self: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> View:
    """Values added at ragged places: those that are not there add zero."""
    del counts
    _require(accumulate and isinstance(values, Ragged) and isinstance(self, View), "values put at places of")
    places = [place for place in indices if place is not None]
    same = all(isinstance(p, Ragged) and b.rank(p.view) == 1 and p.rows == values.rows for p in places)
    _require(same and indices[0] is not None and values.dim == 0, "values put at places of")
    wholes = [place.view if isinstance(place, Ragged) else place for place in indices]
    return dense(b, aten.index_put.default, self, wholes, masked(b, values), True)


@ragged(aten.index_add.default)
def index_add(b: Builder, counts: Counts, self: Any, dim: int, index: Any, source: Any, alpha: Number) -> View:
    """Rows added at ragged places: those that are not there add zero."""
    del counts
    _require(isinstance(self, View) and isinstance(index, Ragged) and isinstance(source, Ragged), "rows added at")
    _require(source.rows == index.rows and source.dim == dim % b.rank(self), "rows added at places of")
    return dense(b, aten.index_add.default, self, dim, index.view, masked(b, source), alpha=alpha)


# ------------------------------------------------------------------------------------------------ linear algebra


@ragged(aten.mm.default)
def mm(b: Builder, counts: Counts, self: Any, mat2: Any) -> Ragged | View:
    del counts
    if isinstance(self, Ragged) and isinstance(mat2, View) and self.dim == 0:
        return Ragged(b.contraction("m k, k n -> m n", self.view, mat2), 0, self.rows)
    if isinstance(mat2, Ragged) and isinstance(self, View) and mat2.dim == 1:
        return Ragged(b.contraction("m k, k n -> m n", self, mat2.view), 1, mat2.rows)
    if not isinstance(self, Ragged) or not isinstance(mat2, Ragged):
        raise UnsupportedError(UNREPRESENTABLE, "a product with a dimension whose size is read from a tensor")
    _require(self.rows == mat2.rows and (self.dim, mat2.dim) == (1, 0), "a product over other rows along")
    return b.contraction("m k, k n -> m n", masked(b, self), mat2.view)


@ragged(aten.addmm.default)
def addmm(b: Builder, counts: Counts, self: Any, mat1: Any, mat2: Any, beta: Number, alpha: Number) -> Ragged | View:
    found = mm(b, counts, mat1, mat2)
    _require(isinstance(self, View), "a product added to")
    view = found.view if isinstance(found, Ragged) else found
    if isinstance(found, Ragged) and b.rank(self) >= b.rank(view) - found.dim:
        _require(b.shape(self)[found.dim - b.rank(view)] == 1, "a product added to other rows along")
    result = b.combination((beta, self), (alpha, view))
    return Ragged(result, found.dim, found.rows) if isinstance(found, Ragged) else result


@ragged(aten.sum.dim_IntList)
def sum_rows(b: Builder, counts: Counts, self: Any, dim: Sequence[int] | None, keepdim: bool) -> Ragged | View:
    del counts
    rank = b.rank(self.view)
    dims = sorted(d % rank for d in dim) if dim else list(range(rank))
    if self.dim in dims:
        return b.sum(masked(b, self), dims, keepdim)
    before = 0 if keepdim else sum(d < self.dim for d in dims)
    return Ragged(b.sum(self.view, dims, keepdim), self.dim - before, self.rows)


# ------------------------------------------------------------------------------------------------ layout


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
    _require(place != self.dim, "a removal of")
    kept = b.shape(self.view)[place] != 1
    return self if kept else Ragged(b.squeeze(self.view, [place]), self.dim - (place < self.dim), self.rows)


@ragged(aten.select.int)
def select(b: Builder, counts: Counts, self: Any, dim: int, index: Number) -> Ragged:
    del counts
    place = dim % b.rank(self.view)
    _require(place != self.dim, "one element of")
    return Ragged(dense(b, aten.select.int, self.view, place, index), self.dim - (place < self.dim), self.rows)


@ragged(aten.unbind.int)
def unbind(b: Builder, counts: Counts, self: Any, dim: int) -> tuple[Ragged, ...]:
    place = dim % b.rank(self.view)
    size = b.shape(self.view)[place]
    _require(place != self.dim and isinstance(size, int), "all elements of")
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
    _require(len(dims) == 1, "another shape of")
    (dim,) = dims
    before, after = list(size[:dim]), list(size[dim + 1 :])
    kept = product(before) == product(shape[: value.dim]) and product(after) == product(shape[value.dim + 1 :])  # pyright: ignore[reportArgumentType]
    _require(kept, "another shape of")
    return Ragged(b.reshape(value.view, [*before, value.rows.total, *after]), dim, value.rows)  # pyright: ignore[reportArgumentType]


@ragged(aten.expand.default)
def expand(b: Builder, counts: Counts, self: Any, size: Sequence[Number]) -> Ragged:
    _require(isinstance(self, Ragged), "a repetition along")
    added = len(size) - b.rank(self.view)
    dim = self.dim + added
    others = [d for d, n in enumerate(size) if counts.occur_in(n) and d != dim]
    _require(not others, "a repetition along")
    shape = [self.rows.total if d == dim else n for d, n in enumerate(size)]
    return Ragged(b.expand(self.view, shape), dim, self.rows)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------------------------ collectives


@ragged(c10d.wait_tensor.default)
def wait_tensor(b: Builder, counts: Counts, tensor: Any) -> Ragged:
    del b, counts
    return tensor


@ragged(c10d.all_reduce.default)
def all_reduce(b: Builder, counts: Counts, input: Any, reduce_op: str, group_name: Any) -> Ragged:
    """Rows are added to those at the same place, so the ranks of the group must have the same rows."""
    del counts
    _require(isinstance(input, Ragged) and isinstance(group_name, Group), "all_reduce along")
    _require(not any(input.rows.present.uses(axis) for axis in group_name.axes), "all_reduce over other rows along")
    return Ragged(reduce_over(b, input.view, reduce_op, group_name), input.dim, input.rows)
