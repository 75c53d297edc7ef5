"""Slices as windows: contiguous parts of a dimension that need not be spelled by digits."""

from __future__ import annotations

import torch

from verifycompile.ir.term import View
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.layout import bound, empty_along, slice_tensor
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.slice_copy.Tensor)
def slice_copy(b: Builder, self: View, dim: int, start: Number | None, end: Number | None, step: Number) -> View:
    """A slice as a window, whether or not digits spell it: so that all slices of a dimension are of one form."""
    position = b.dim(self, dim)
    size = self.shape[position]
    first, last = bound(size, 0 if start is None else start), bound(size, size if end is None else end)
    if step != 1 or not isinstance(size, int) or not isinstance(first, int) or not isinstance(last, int):
        return slice_tensor(b, self, dim, start, end, step)
    if last <= first:
        return empty_along(b, self, dim)
    if b.pool.piecewise is not None:
        return b.pool.piecewise.narrowed(b.pool, self, position, first, last - first)
    part = b.part(self, position, first, last - first)
    if part is not None:
        return part
    return window(b.pool, self, position, first, last - first)
