"""Operators that make tensors from numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch

from verifycompile.ir.size import Size, exact_quotient, normalize_size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


def _checked(b: Builder, value: Number) -> Number:
    """The value as the result's dtype holds it: a fraction stored as an integer would be truncated."""
    dtype = b.call.dtype
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return value
    if isinstance(value, sympy.Expr):
        whole = value.is_integer is True and dtype is not torch.bool
    elif dtype is torch.bool:
        return int(bool(value))
    else:
        whole = math.isfinite(value) and value == math.floor(value)
    if not whole:
        raise UnsupportedError(UNSUPPORTED, f"the value {value} in a tensor of {dtype}")
    return value


@operator(aten.full.default)
def full(b: Builder, size: Sequence[Size], fill_value: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, fill_value), size)


@operator(aten.full_like.default)
def full_like(b: Builder, self: View, fill_value: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, fill_value), b.shape(self))


@operator(aten.new_full.default)
def new_full(b: Builder, self: View, size: Sequence[Size], fill_value: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, fill_value), size)


@operator(aten.zeros.default, aten._efficientzerotensor.default)
def zeros(b: Builder, size: Sequence[Size], dtype: torch.dtype | None) -> View:
    return b.full(0, size)


@operator(aten.ones.default)
def ones(b: Builder, size: Sequence[Size], dtype: torch.dtype | None) -> View:
    return b.full(1, size)


@operator(aten.zeros_like.default)
def zeros_like(b: Builder, self: View, dtype: torch.dtype | None) -> View:
    return b.full(0, b.shape(self))


@operator(aten.ones_like.default)
def ones_like(b: Builder, self: View, dtype: torch.dtype | None) -> View:
    return b.full(1, b.shape(self))


@operator(aten.new_zeros.default)
def new_zeros(b: Builder, self: View, size: Sequence[Size], dtype: torch.dtype | None) -> View:
    return b.full(0, size)


@operator(aten.new_ones.default)
def new_ones(b: Builder, self: View, size: Sequence[Size], dtype: torch.dtype | None) -> View:
    return b.full(1, size)


@operator(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, s: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, s), ())


@operator(aten.arange.default)
def arange(b: Builder, end: Number, dtype: torch.dtype | None) -> View:
    return _range(b, 0, end, 1)


@operator(aten.arange.start)
def arange_start(b: Builder, start: Number, end: Number, dtype: torch.dtype | None) -> View:
    return _range(b, start, end, 1)


@operator(aten.arange.start_step)
def arange_start_step(b: Builder, start: Number, end: Number, step: Number, dtype: torch.dtype | None) -> View:
    return _range(b, start, end, step)


@operator(torch.ops.prims.iota.default)
def prims_iota(b: Builder, length: Size, start: int, step: int, dtype: torch.dtype | None, requires_grad: bool) -> View:
    """``requires_grad`` is a flag of the tensor and no part of its value."""
    return b.full(0, (0,)) if length == 0 else b.iota(length, start, step)


def _range(b: Builder, start: Number, end: Number, step: Number) -> View:
    if b.call.shape is None or any(isinstance(n, float) and not n.is_integer() for n in (start, end, step)):
        raise UnsupportedError(UNREPRESENTABLE, f"arange({start}, {end}, {step})")
    length = b.call.shape[0]
    if step == 1 and exact_quotient(normalize_size(end - start), 1) != length:  # pyright: ignore[reportArgumentType]
        raise UnsupportedError(UNREPRESENTABLE, f"arange({start}, {end}) of {length} elements")
    return b.full(0, (0,)) if length == 0 else b.iota(length, start, step)
