"""Elements and rows that an index picks along one dimension."""

from __future__ import annotations

import torch

from verifycompile.ir import relabel
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.bounds import require_within
from verifycompile.rewrites.operators.indexing import one_hot, rows_at
from verifycompile.rewrites.operators.known_places import from_front, read_along, read_at, to_front
from verifycompile.rewrites.operators.ordering import at_its_extreme
from verifycompile.rewrites.operators.scalar_rows import scalars_as_rows
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.gather.default)
@scalars_as_rows
def gather(b: Builder, self: View, dim: int, index: View, sparse_grad: bool) -> View:
    """``self[..., index[...], ...]``; where ``index`` is shorter than ``self``, its leading part is meant."""
    rank = b.rank(self)
    if rank == 0:
        return self
    position = dim % rank
    table = _trim(b, self, index, position)
    known = read_along(b, table, position, index) or at_its_extreme(b, table, position, index)
    if known is not None:
        return known
    table = b.permute(table, [*(d for d in range(rank) if d != position), position])
    table = b.unsqueeze(table, position)
    size = b.shape(self)[position]
    require_within(b, index, size)
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
    known = read_at(b, self, position, index)
    if known is not None:
        return known
    moved = relabel.permute(self, to_front(self, b.lead + position, b.lead))
    rows = rows_at(b, moved, index)
    return relabel.permute(rows, from_front(rows, b.lead + position, b.lead))
