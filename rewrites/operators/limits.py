"""Maxima, minima, and limits of elements."""

from __future__ import annotations

import torch

from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.maximum.default)
def maximum(b: Builder, self: View, other: View) -> View:
    if b.call.dtype is torch.bool:
        return b.either(self, other)
    return b.pointwise(MAXIMUM, self, other)


@operator(aten.minimum.default)
def minimum(b: Builder, self: View, other: View) -> View:
    if b.call.dtype is torch.bool:
        return b.mul(self, other)
    return b.pointwise(MINIMUM, self, other)


@operator(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, self: View, min: View | Number | None, max: View | Number | None) -> View:
    result = self if min is None else limited(b, MAXIMUM, self, min)
    return result if max is None else limited(b, MINIMUM, result, max)


@operator(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, self: View, min: View | Number) -> View:
    return limited(b, MAXIMUM, self, min)


@operator(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, self: View, max: View | Number) -> View:
    return limited(b, MINIMUM, self, max)


def limited(b: Builder, operation: Operation, view: View, limit: View | Number) -> View:
    """A limit that all of a counter's numbers keep, or none, changes nothing, or all."""
    if operation is MAXIMUM and isinstance(limit, int | float) and limit <= 0 and is_nonnegative(view):
        return view
    from verifycompile.rewrites.operators.counted import smallest_and_largest  # here, because few programs count

    ends = smallest_and_largest(view)
    if ends is None or not isinstance(limit, int):
        return b.pointwise(operation, view, limit)
    low, high = ends if operation is MINIMUM else (-ends[1], -ends[0])
    bound = limit if operation is MINIMUM else -limit
    if high <= bound:
        return view
    return b.full(limit, b.shape(view)) if low >= bound else b.pointwise(operation, view, limit)
