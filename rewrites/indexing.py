"""Lookups by index: embedding, gather, scatter. Each is a contraction with the one-hot form of its index.

An index outside of its table is an error in torch and contributes zero here; one that a rank computes is shown to
be within (see ``bounds``), one that is given is right by assumption.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir import relabel
from verifycompile.ir.algebra import has_infinity
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.advanced_indexing import matches, put_accumulated
from verifycompile.rewrites.bounds import require_within
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import INTEGER_DTYPES, cast, choose, require_real
from verifycompile.rewrites.ordering import is_distinct
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator
from verifycompile.rewrites.scalar_rows import scalars_as_rows

aten = torch.ops.aten


def one_hot(b: Builder, index: View, size: Size) -> View:
    """Indicator of shape ``(*index.shape, size)``: ``index[...] == position``."""
    return b.equal(b.unsqueeze(index, b.rank(index)), b.iota(size))


@operator(aten.embedding.default)
def embedding(
    b: Builder, weight: View, indices: View, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> View:
    """Row lookup. The last three arguments change the gradient only, which is an operator of its own."""
    require_within(b, indices, b.shape(weight)[0])
    lookup = one_hot(b, indices, b.shape(weight)[0])
    return b.contraction("*b v, v d -> *b d", lookup, weight)


@operator(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    b: Builder, grad_output: View, indices: View, num_weights: Size, padding_idx: int, scale_grad_by_freq: bool
) -> View:
    require_real(b, "grad_output")
    if scale_grad_by_freq:
        raise UnsupportedError(UNSUPPORTED, "embedding with scale_grad_by_freq=True")
    if num_weights == 0:
        return b.full(0, [0, b.shape(grad_output)[-1]])
    require_within(b, indices, num_weights)
    lookup = one_hot(b, indices, num_weights)
    if padding_idx >= 0:
        kept = b.negate(b.equal(b.iota(num_weights), padding_idx))
        lookup = b.mul(lookup, kept)
    return b.contraction("*b v, *b d -> v d", lookup, grad_output)


@operator(aten.gather.default)
@scalars_as_rows
def gather(b: Builder, self: View, dim: int, index: View, sparse_grad: bool) -> View:
    """``self[..., index[...], ...]``; where ``index`` is shorter than ``self``, its leading part is meant."""
    rank = b.rank(self)
    if rank == 0:
        return self
    position = dim % rank
    table = _trim(b, self, index, position)
    table = b.permute(table, [*(d for d in range(rank) if d != position), position])
    table = b.unsqueeze(table, position)
    size = b.shape(self)[position]
    require_within(b, index, size)
    b.assume_index(index, size, None, f"the indices of a gather are within [0, {size})")
    lookup = one_hot(b, index, size)
    return b.sum(b.mul(lookup, table), [rank])


def _trim(b: Builder, view: View, index: View, position: int) -> View:
    for d, (size, wanted) in enumerate(zip(b.shape(view), b.shape(index), strict=True)):
        if d != position and size != wanted:
            view = b.narrow(view, d, 0, wanted)
    return view


@operator(aten.index_select.default)
@scalars_as_rows
def index_select(b: Builder, self: View, dim: int, index: View) -> View:
    position = dim % b.rank(self)
    size = b.shape(self)[position]
    require_within(b, index, size)
    moved = relabel.permute(self, _to_front(self, b.lead + position, b.lead))
    rows = b.contraction("i v, v *r -> i *r", one_hot(b, index, size), moved)
    return relabel.permute(rows, _from_front(rows, b.lead + position, b.lead))


def _to_front(view: View, position: int, lead: int) -> list[int]:
    rest = [d for d in range(lead, view.rank) if d != position]
    return [*range(lead), position, *rest]


def _from_front(view: View, position: int, lead: int) -> list[int]:
    order = [*range(lead), *range(lead + 1, view.rank)]
    order.insert(position, lead)
    return order


@operator(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, self: View, indices: Sequence[View | None], values: View, accumulate: bool) -> View:
    """Rows under a mask, ``self[arange, index] = values`` (or ``self[index, arange]``), distinct places, and sums."""
    (first, *others) = indices
    values = cast(b, values, b.dtype_of("values"), b.dtype_of("self"))
    by_mask = b.call.dtypes.get("indices") is torch.bool or not accumulate
    if not others and first is not None and is_indicator(first) and by_mask:
        return _put_masked(b, self, first, values, accumulate)
    if len(others) == 1 and first is not None and others[0] is not None and b.rank(self) == 2:
        result = _put_rows(b, self, (first, others[0]), values, accumulate)
        if result is not None:
            return result
    if accumulate:
        return put_accumulated(b, self, indices, values)
    if not others and first is not None and _is_permutation(b, first, b.shape(self)[0]):
        return _put_everywhere(b, self, first, values)
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) == 1 and b.call.dtypes.get("indices") in INTEGER_DTYPES:
        result = _put_distinct(b, self, given[0], indices[given[0]], values)
        if result is not None:
            return result
    raise UnsupportedError(UNSUPPORTED, "index_put other than `x[mask] = scalar` and `x[arange, index] = values`")


def _is_permutation(b: Builder, index: View, size: Size) -> bool:
    """Whether ``index`` holds every place of a dimension of ``size`` once."""
    return b.rank(index) == 1 and b.shape(index) == (size,) and is_distinct(b, index, 0) and size != 1


def _put_everywhere(b: Builder, view: View, index: View, values: View) -> View:
    """All rows are written: what was there before does not matter."""
    shape = b.shape(view)
    rows = b.expand(values, shape)
    return b.contraction("i v, i *r -> v *r", one_hot(b, index, shape[0]), rows)


def _put_distinct(b: Builder, view: View, dim: int, index: View | None, values: View) -> View | None:
    """Values at places of one dimension, no two of which are the same."""
    if index is None or b.rank(index) != 1 or not is_distinct(b, index, 0):
        return None
    shape, (count,) = list(b.shape(view)), b.shape(index)
    put = b.expand(values, [*shape[:dim], count, *shape[dim + 1 :]])
    places = matches(b, index, shape[dim])
    if count == 1:
        mask = b.squeeze(places, 0)
        for _ in shape[dim + 1 :]:
            mask = b.unsqueeze(mask, -1)
        return choose(b, mask, put, view)
    if has_infinity(put) or has_infinity(view):
        return None
    before, after = (" ".join(f"{name}{d}" for d in range(n)) for name, n in (("l", dim), ("r", len(shape) - dim - 1)))
    written = b.contraction(f"i v, {before} i {after} -> {before} v {after}", places, put)
    replaced = b.contraction(f"i v, {before} v {after} -> {before} v {after}", places, view)
    return b.add(b.sub(view, replaced), written)


def _put_masked(b: Builder, view: View, mask: View, values: View, accumulate: bool) -> View:
    """The same values in every row that the mask picks: how many these are depends on data."""
    if b.shape(mask) != b.shape(view)[: b.rank(mask)] or b.call.dtypes.get("indices") is not torch.bool:
        raise UnsupportedError(UNSUPPORTED, "index_put with whole numbers as its mask")
    rest = b.rank(view) - b.rank(mask)
    row = values
    while b.rank(row) > rest and b.shape(row)[0] == 1:
        row = relabel.remove_dim(row, b.lead)
    if b.rank(row) > rest:
        raise UnsupportedError(UNSUPPORTED, "index_put with a mask and more than one value")
    for _ in range(rest):
        mask = b.unsqueeze(mask, b.rank(mask))
    if accumulate:
        if has_infinity(row) or not b.dtype_of("self").is_floating_point:
            raise UnsupportedError(UNSUPPORTED, f"a sum under a mask in {b.dtype_of('self')}")
        return b.add(view, b.mul(mask, row))
    return choose(b, mask, row, view)


def _put_rows(b: Builder, view: View, indices: tuple[View, View], values: View, accumulate: bool) -> View | None:
    for rows, dim in ((indices[0], 0), (indices[1], 1)):
        other = indices[1 - dim]
        if not _counts(b, rows, b.shape(view)[dim]) or b.rank(other) != 1 or b.rank(values) > 1:
            continue
        # Each row occurs once, so no two values meet in one element and their order does not matter.
        mask = matches(b, other, b.shape(view)[1 - dim])
        spread = b.unsqueeze(values, 1) if b.rank(values) else values
        if dim == 1:
            mask = b.transpose(mask, 0, 1)
            spread = b.transpose(spread, 0, 1) if b.rank(values) else spread
        if accumulate:
            return b.add(view, b.mul(mask, spread))
        finite = not (has_infinity(spread) or has_infinity(view))
        return b.add(view, b.mul(mask, b.sub(spread, view))) if finite else choose(b, mask, spread, view)
    return None


def _counts(b: Builder, index: View, size: Size) -> bool:
    """Whether ``index`` is ``arange(size)``."""
    return b.rank(index) == 1 and index == b.iota(size)
