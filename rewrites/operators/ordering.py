"""Operators that read one dimension wholly and in order: sorting, selection of extremes, scans, rolls.

Each is taken as it is. The other dimensions are batch dimensions, which may be sharded; the one that is read may
not, because what comes out of a part of it says nothing about the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fractions import Fraction

import torch

from verifycompile.ir import relabel
from verifycompile.ir.algebra import open_view
from verifycompile.ir.scalar import ONE, divide
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import Operation, View
from verifycompile.ir.window import resized
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.distinct import SORT, TOPK
from verifycompile.rewrites.operators.elementwise import cast, require_real
from verifycompile.rewrites.operators.extreme_places import (
    ARG_EXTREME,
    OTHER_END,
    place,
    reduced,
    without_what_is_added,
)
from verifycompile.rewrites.operators.reduction import extreme, reduce_product, reduced_over
from verifycompile.rewrites.registry import UNREPRESENTABLE, Handler, UnsupportedError, operator

aten = torch.ops.aten

CUMULATIVE_PRODUCT = Operation("cumulative_product")
CUMULATIVE_LOGSUMEXP = Operation("cumulative_logsumexp")
CUMULATIVE_EXTREMES = {
    kind: (Operation(f"cumulative_{kind}"), Operation(f"cumulative_{kind}_index")) for kind in ("max", "min")
}
PRODUCT = Operation("product_of_all")
ROLL = Operation("roll", linear=frozenset({0}), copies=True)
KTH = Operation("kth_value"), Operation("kth_index")
MEDIAN = Operation("median_value"), Operation("median_index")
NANMEDIAN = Operation("nanmedian_value"), Operation("nanmedian_index")
MODE = Operation("mode_value"), Operation("mode_index")


def _scalar_as_row(b: Builder, view: View) -> View:
    """torch treats a tensor without dimensions as one element."""
    return b.unsqueeze(view, 0) if b.rank(view) == 0 else view


def _flat(b: Builder, view: View) -> View:
    """All elements in row-major order."""
    return b.reshape(view, [product(b.shape(view))])


@operator(aten.cumprod.default)
def cumprod(b: Builder, self: View, dim: int, dtype: torch.dtype | None) -> View:
    value = cast(b, self, b.dtype_of("self"), b.call.dtype if dtype is None else dtype)
    return b.along(CUMULATIVE_PRODUCT, (), value, dim) if b.rank(value) else value


@operator(aten.logcumsumexp.default)
def logcumsumexp(b: Builder, self: View, dim: int) -> View:
    require_real(b, "self")
    return b.along(CUMULATIVE_LOGSUMEXP, (), self, dim) if b.rank(self) else self


def _running_extreme(kind: str) -> Handler:
    def handler(b: Builder, self: View, dim: int) -> tuple[View, View]:
        require_real(b, "self")
        row = _scalar_as_row(b, self)
        values, places = (b.along(operation, (), row, dim) for operation in CUMULATIVE_EXTREMES[kind])
        return (values, places) if b.rank(self) else (b.select(values, 0, 0), b.select(places, 0, 0))

    return handler


operator(aten.cummax.default)(_running_extreme("max"))
operator(aten.cummin.default)(_running_extreme("min"))


@operator(aten.prod.dim_int)
def prod_dim(b: Builder, self: View, dim: int, keepdim: bool, dtype: torch.dtype | None) -> View:
    value = cast(b, self, b.dtype_of("self"), b.call.dtype if dtype is None else dtype)
    with contextlib.suppress(relabel.UnalignedError):
        return reduced_over(b, value, reduce_product, dim, keepdim)
    return reduced(b, PRODUCT, (), value, dim, keepdim)


@operator(aten.prod.default)
def prod(b: Builder, self: View, dtype: torch.dtype | None) -> View:
    """The product of all elements."""
    value = cast(b, self, b.dtype_of("self"), b.call.dtype if dtype is None else dtype)
    with contextlib.suppress(relabel.UnalignedError):
        return reduced_over(b, value, reduce_product, None, False)
    return reduced(b, PRODUCT, (), _flat(b, value), 0, False)


@operator(aten.roll.default)
def roll(b: Builder, self: View, shifts: Sequence[Size], dims: Sequence[int]) -> View:
    """Without ``dims`` the elements are rolled in row-major order."""
    if not dims:
        shape = b.shape(self)
        flat = b.along(ROLL, (shifts[0],), b.reshape(self, [product(shape)]), 0)
        return b.reshape(flat, shape)
    result = self
    for shift, dim in sorted(zip(shifts, dims, strict=True), key=lambda pair: pair[1] % b.rank(self)):
        result = _rolled(b, result, shift, dim) or b.along(ROLL, (shift,), result, dim)
    return result


def _rolled(b: Builder, view: View, shift: Size, dim: int) -> View | None:
    """The last positions before the first ones, where values are assembled from parts."""
    position = b.dim(view, dim)
    size = view.shape[position]
    if b.pool.piecewise is None or not isinstance(size, int) or not isinstance(shift, int) or shift % size == 0:
        return None
    start = -shift % size
    ends = (start, size - start), (0, start)
    return b.concatenate([b.narrow(view, dim, first, length) for first, length in ends], dim)


# ------------------------------------------------------------------------------------------------ order


@operator(aten.topk.default)
def topk(b: Builder, self: View, k: Size, dim: int, largest: bool, sorted: bool) -> tuple[View, View]:
    if b.rank(self) == 0 or k == 0:
        raise UnsupportedError(UNREPRESENTABLE, "topk of nothing, or of a tensor without dimensions")
    attributes = (largest, sorted)
    scaled, added = without_what_is_added(b, self, dim)
    factor = scaled.coefficient if isinstance(scaled.coefficient, Fraction) and scaled.coefficient > 0 else ONE
    rest = scaled.scaled(divide(ONE, factor))  # a positive factor changes no order
    indices = b.along(TOPK[1], attributes, rest, dim, k)
    if k == 1:
        return extreme(b, self, [dim], True, "max" if largest else "min"), indices
    values = b.along(TOPK[0], attributes, _of_parts(b, rest, k, dim, largest), dim, k)
    return b.add(values.scaled(factor), resized(added, b.dim(self, dim), k)), indices


def _of_parts(b: Builder, view: View, k: Size, dim: int, largest: bool) -> View:
    """What to select k elements from: the whole, where there are k elements or more selected from each of its parts."""
    term, position = view.term, b.dim(view, dim)
    if term.operation is not TOPK[0] or view.coefficient != 1 or term.attributes[0] is not largest:
        return view
    (fresh,) = term.fresh
    count = term.index_sizes[fresh]
    if not isinstance(k, int) or not isinstance(count, int) or count < k or view.axes[fresh] != ((position, 1, count),):
        return view
    shape, at = b.shape(view), position - b.lead
    parts = exact_quotient(shape[at], count)
    others = (digit for number, axis in enumerate(view.axes) if number != fresh for digit in axis)
    if parts is None or any(digit[0] == position and exact_quotient(digit[1], count) is None for digit in others):
        return view
    opened = open_view(b.reshape(view, (*shape[:at], parts, count, *shape[at + 1 :])))
    (core,) = opened.cores
    kept = [dim for dim in range(len(opened.shape)) if dim not in (*core, position + 1)]
    values = relabel.permute(opened.operands[0], [*kept[: position + 1], *core, *kept[position + 1 :], position + 1])
    values = relabel.remove_dim(values, values.rank - 1)
    b.pool.lemma_trace.append(("best-of-best", ""))
    length = product(opened.shape[dim] for dim in core)
    whole = b.reshape(values, (*shape[:at], product((parts, length)), *shape[at + 1 :]))
    return _of_parts(b, whole, k, dim, largest)


def _sorted(b: Builder, view: View, attributes: tuple[object, ...], dim: int) -> tuple[View, View]:
    row = _scalar_as_row(b, view)
    values, indices = (b.along(operation, attributes, row, dim) for operation in SORT)
    return (values, indices) if b.rank(view) else (b.select(values, 0, 0), b.select(indices, 0, 0))


@operator(aten.sort.default)
def sort(b: Builder, self: View, dim: int, descending: bool) -> tuple[View, View]:
    return _sorted(b, self, (descending, False), dim)


@operator(aten.sort.stable)
def sort_stable(b: Builder, self: View, stable: bool | None, dim: int, descending: bool) -> tuple[View, View]:
    return _sorted(b, self, (descending, bool(stable)), dim)


@operator(aten.kthvalue.default)
def kthvalue(b: Builder, self: View, k: Size, dim: int, keepdim: bool) -> tuple[View, View]:
    value, index = (reduced(b, operation, (k,), self, dim, keepdim) for operation in KTH)
    return value, index


def _typical(operations: tuple[Operation, Operation]) -> Handler:
    """An element that stands for a row, and its place."""

    def handler(b: Builder, self: View, dim: int, keepdim: bool) -> tuple[View, View]:
        value, index = (reduced(b, operation, (), self, dim, keepdim) for operation in operations)
        return value, index

    return handler


operator(aten.median.dim)(_typical(MEDIAN))
operator(aten.nanmedian.dim)(_typical(NANMEDIAN))
operator(aten.mode.default)(_typical(MODE))


@operator(aten.median.default)
def median_of_all(b: Builder, self: View) -> View:
    return reduced(b, MEDIAN[0], (), _flat(b, self), 0, False)


@operator(aten.nanmedian.default)
def nanmedian_of_all(b: Builder, self: View) -> View:
    return reduced(b, NANMEDIAN[0], (), _flat(b, self), 0, False)


# ------------------------------------------------------------------------------------------------ extremes and places


def at_its_extreme(b: Builder, view: View, dim: int, index: View) -> View | None:
    """What is looked up where an extreme of the value is, which is that extreme; None for any other index."""
    kind = next((kind for kind, operation in ARG_EXTREME.items() if operation is index.term.operation), None)
    if kind is None or b.shape(index)[dim] != 1 or b.rank(view) == 0:
        return None
    kinds = (kind, OTHER_END[kind])  # a negated value has its largest element where the value has its smallest one
    found = next((kind for kind in kinds if place(b, kind, view, dim, True) == index), None)
    return None if found is None else extreme(b, view, [dim], True, found)


def _extreme_with_index(kind: str) -> Handler:
    def handler(b: Builder, self: View, dim: int, keepdim: bool) -> tuple[View, View]:
        index = place(b, kind, self, dim, keepdim)
        return (extreme(b, self, [dim], keepdim, kind) if b.rank(self) else self), index

    return handler


def _place_of_extreme(kind: str) -> Handler:
    def handler(b: Builder, self: View, dim: int | None, keepdim: bool) -> View:
        if dim is not None:
            return place(b, kind, self, dim, keepdim)
        shape = b.shape(self)
        found = place(b, kind, b.reshape(self, [product(shape)]), 0, False)
        return b.reshape(found, [1] * len(shape)) if keepdim else found

    return handler


operator(aten.max.dim)(_extreme_with_index("max"))
operator(aten.min.dim)(_extreme_with_index("min"))
operator(aten.argmax.default)(_place_of_extreme("max"))
operator(aten.argmin.default)(_place_of_extreme("min"))
