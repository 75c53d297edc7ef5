"""Lookups by index: embedding, gather, scatter. Each is a contraction with the one-hot form of its index.

An index outside of its table is an error in torch and contributes zero here; one that a rank computes is shown to
be within (see ``bounds``), one that is given is right by assumption.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir import relabel
from verifycompile.ir.algebra import COMBINE, IOTA, has_infinity
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.elementwise import (
    INTEGER_DTYPES,
    cast,
    choose,
    require_real,
    require_same_on_ranks,
)
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


def one_hot(b: Builder, index: View, size: Size) -> View:
    """Indicator of shape ``(*index.shape, size)``: ``index[...] == position``."""
    return b.equal(b.unsqueeze(index, b.rank(index)), b.iota(size))


def rows_at(b: Builder, table: View, index: View) -> View:
    """The rows of a table by number."""
    if table.term.operation in (CONCATENATE, STACK, PAD) or index.term.operation in (IOTA, COMBINE):
        from verifycompile.rewrites.operators.joined_tables import rows_of_parts  # here, because few tables are joined

        return rows_of_parts(b, table, index)
    row = " ".join(f"r{dim}" for dim in range(1, b.rank(table)))
    return b.contraction(f"*i v, v {row} -> *i {row}", one_hot(b, index, b.shape(table)[0]), table)


@operator(aten.embedding.default)
def embedding(
    b: Builder, weight: View, indices: View, padding_idx: int, scale_grad_by_freq: bool, sparse: bool
) -> View:
    """Row lookup. The last three arguments change the gradient only, which is an operator of its own."""
    require_within(b, indices, b.shape(weight)[0])
    return rows_at(b, weight, indices)


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
    require_same_on_ranks(b, padding_idx=padding_idx)
    if padding_idx >= 0:
        kept = b.negate(b.equal(b.iota(num_weights), padding_idx))
        lookup = b.mul(lookup, kept)
    rows = b.reshape(grad_output, [*b.shape(indices), b.shape(grad_output)[-1]])
    return b.contraction("*b v, *b d -> v d", lookup, rows)


@operator(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(b: Builder, self: View, indices: Sequence[View | None], values: View, accumulate: bool) -> View:
    """Rows under a mask, ``self[arange, index] = values`` (or ``self[index, arange]``), distinct places, and sums."""
    (first, *others) = indices
    values = cast(b, values, b.dtype_of("values"), b.dtype_of("self"))
    by_mask = b.call.dtypes.get("indices") is torch.bool or not accumulate
    if not others and first is not None and is_indicator(first) and by_mask:
        return _put_masked(b, self, first, values, accumulate)
    from verifycompile.rewrites.operators import index_writes  # here, because few programs write at positions

    if len(others) == 1 and first is not None and others[0] is not None and b.rank(self) == 2:
        result = index_writes.put_rows(b, self, (first, others[0]), values, accumulate)
        if result is not None:
            return result
    if accumulate:
        return index_writes.put_accumulated(b, self, indices, values)
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) == 1 and b.call.dtypes.get("indices") in INTEGER_DTYPES:
        result = index_writes.put_distinct(b, self, given[0], indices[given[0]], values)
        if result is not None:
            return result
    return index_writes.put_at(b, self, indices, values)


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
