"""Diagonals: read, written into zeros, and their gradient; the triangles on their sides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir import relabel
from verifycompile.ir.size import Size
from verifycompile.ir.term import Digit, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import cast
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, operator

aten = torch.ops.aten


def _length(rows: Size, columns: Size, offset: int) -> int:
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise UnsupportedError(UNREPRESENTABLE, f"a diagonal of a matrix of {rows} by {columns}")
    length = min(rows - max(-offset, 0), columns - max(offset, 0))
    if length <= 0:
        raise UnsupportedError(UNREPRESENTABLE, f"a diagonal without elements, at {offset}")
    return length


@operator(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(b: Builder, self: View, offset: int, dim1: int, dim2: int) -> View:
    """The elements ``[i, i + offset]`` of two dimensions, last."""
    rank = b.rank(self)
    rows, columns = dim1 % rank, dim2 % rank
    length = _length(b.shape(self)[rows], b.shape(self)[columns], offset)
    part = b.narrow(self, rows, max(-offset, 0), length)
    part = b.narrow(part, columns, max(offset, 0), length)
    part = b.permute(part, [*(d for d in range(rank) if d not in (rows, columns)), rows, columns])
    new = part.rank - 2
    replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, part.shape[d])] for d in range(new)}
    replacement |= {new: [(new, 1, length)], new + 1: [(new, 1, length)]}
    return relabel.substitute(part, replacement, part.shape[: new + 1])


def _embedded(b: Builder, view: View, rows: Size, columns: Size, offset: int, dim1: int, dim2: int) -> View:
    """The last dimension on a diagonal of two new ones, zeros around it."""
    length = b.shape(view)[-1]
    places = [
        b.equal(b.unsqueeze(b.iota(length, start), 1), b.unsqueeze(b.iota(size), 0))
        for start, size in ((max(-offset, 0), rows), (max(offset, 0), columns))
    ]
    result = b.contraction("*n i, i r, i c -> *n r c", view, *places)
    rank = b.rank(result)
    order = list(range(rank - 2))
    for position, source in sorted(((dim1 % rank, rank - 2), (dim2 % rank, rank - 1))):
        order.insert(position, source)
    return b.permute(result, order)


@operator(aten.diag_embed.default)
def diag_embed(b: Builder, self: View, offset: int, dim1: int, dim2: int) -> View:
    size = b.shape(self)[-1] + abs(offset)
    return _embedded(b, self, size, size, offset, dim1, dim2)


@operator(aten.diagonal_scatter.default)
def diagonal_scatter(b: Builder, self: View, src: View, offset: int, dim1: int, dim2: int) -> View:
    """``self`` with ``src`` in the place of a diagonal."""
    rank = b.rank(self)
    rows, columns = b.shape(self)[dim1 % rank], b.shape(self)[dim2 % rank]
    _length(rows, columns, offset)
    source = cast(b, src, b.dtype_of("src"), b.dtype_of("self"))
    place = _embedded(b, b.full(1, b.shape(src)), rows, columns, offset, dim1, dim2)
    return b.add(b.mul(b.sub(1, place), self), _embedded(b, source, rows, columns, offset, dim1, dim2))


# ------------------------------------------------------------------------------------------------ triangles


def triangle(b: Builder, view: View, diagonal: int, lower: bool) -> View:
    """Keep the elements on and below (or above) a diagonal of the last two dimensions."""
    rows, columns = b.shape(view)[-2:]
    row = b.unsqueeze(b.iota(rows), 1)
    column = b.unsqueeze(b.iota(columns), 0)
    edge = b.add(row, diagonal)
    mask = b.less_equal(column, edge) if lower else b.less_equal(edge, column)
    return b.mul(view, mask)


@operator(aten.tril.default)
def tril(b: Builder, self: View, diagonal: int) -> View:
    return triangle(b, self, diagonal, lower=True)


@operator(aten.triu.default)
def triu(b: Builder, self: View, diagonal: int) -> View:
    return triangle(b, self, diagonal, lower=False)
