"""Diagonals: read, written into zeros, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir import relabel
from verifycompile.ir.size import Size
from verifycompile.ir.term import Digit, View
from verifycompile.rewrites.builder import Builder
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


@operator(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, grad_output: View, input_sizes: Sequence[Size], offset: int, dim1: int, dim2: int
) -> View:
    rank = len(input_sizes)
    rows, columns = input_sizes[dim1 % rank], input_sizes[dim2 % rank]
    _length(rows, columns, offset)
    return _embedded(b, grad_output, rows, columns, offset, dim1, dim2)
