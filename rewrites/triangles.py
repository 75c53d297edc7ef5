"""The elements of a matrix on one side of a diagonal."""

from __future__ import annotations

import torch

from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


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
