"""Operators that make tensors from numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import sympy
import torch

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.scalar import add, as_scalar, divide
from verifycompile.ir.size import Size, exact_quotient, normalize_size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


HALF_DTYPES = (torch.float16, torch.bfloat16)
"""Of less than single precision: a program goes on in a wider one with what they hold."""


def _list_rounding(b: Builder, values: Iterable[Number]) -> None:
    """The assumption that the number of ``values`` that the result's dtype rounds most is not rounded."""
    dtype, worst, change = b.call.dtype, None, 0.0
    if dtype not in HALF_DTYPES:
        return
    for value in values:
        if isinstance(value, sympy.Expr):  # of open sizes: any whole number
            worst, change = value, torch.finfo(dtype).eps / 2
        elif math.isfinite(value) and (off := abs(torch.tensor(value, dtype=dtype).item() - value)) > change * abs(
            value
        ):
            worst, change = value, off / abs(value)
    if worst is not None:
        name = str(dtype).removeprefix("torch.")
        text = f"the constant {worst} in {name} precision is read as {worst} (relative difference {change:.1e})"
        b.pool.assumptions[Assumption(text, AssumptionKind.PRECISION)] = None


def _checked(b: Builder, value: Number) -> Number:
    """The value as the result's dtype holds it: a fraction stored as an integer would be truncated."""
    dtype = b.call.dtype
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        _list_rounding(b, (value,))
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


@operator(aten.full.default, aten.new_full.default)
def full(
    b: Builder, size: Sequence[Size], fill_value: Number, dtype: torch.dtype | None, self: View | None = None
) -> View:
    return b.full(_checked(b, fill_value), size)


@operator(aten.full_like.default)
def full_like(b: Builder, self: View, fill_value: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, fill_value), b.shape(self))


@operator(aten.zeros.default, aten.new_zeros.default, aten._efficientzerotensor.default)
def zeros(b: Builder, size: Sequence[Size], dtype: torch.dtype | None, self: View | None = None) -> View:
    return b.full(0, size)


@operator(aten.ones.default, aten.new_ones.default)
def ones(b: Builder, size: Sequence[Size], dtype: torch.dtype | None, self: View | None = None) -> View:
    return b.full(1, size)


@operator(aten.zeros_like.default, aten.zero.default)
def zeros_like(b: Builder, self: View, dtype: torch.dtype | None = None) -> View:
    return b.full(0, b.shape(self))


@operator(aten.ones_like.default)
def ones_like(b: Builder, self: View, dtype: torch.dtype | None) -> View:
    return b.full(1, b.shape(self))


@operator(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, s: Number, dtype: torch.dtype | None) -> View:
    return b.full(_checked(b, s), ())


@operator(torch.ops.prims.iota.default)
def prims_iota(b: Builder, length: Size, start: int, step: int, dtype: torch.dtype | None, requires_grad: bool) -> View:
    """``requires_grad`` is a flag of the tensor and no part of its value."""
    return b.full(0, (0,)) if length == 0 else b.iota(length, start, step)


@operator(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: Builder, end: Number, dtype: torch.dtype | None, start: Number = 0, step: Number = 1) -> View:
    fractional = any(isinstance(n, float) and not n.is_integer() for n in (start, end, step))
    is_symbolic = not all(isinstance(n, (int, float)) for n in (start, end, step))
    is_other = is_symbolic and (fractional or step != 1)  # nothing shows that there are as many as were recorded
    if is_other or b.call.shape is None or (fractional and not (b.call.dtype and b.call.dtype.is_floating_point)):
        raise UnsupportedError(UNREPRESENTABLE, f"arange({start}, {end}, {step})")
    length = b.call.shape[0]
    if step == 1 and not fractional and exact_quotient(normalize_size(end - start), 1) != length:  # pyright: ignore[reportArgumentType]  # whole numbers
        raise UnsupportedError(UNREPRESENTABLE, f"arange({start}, {end}) of {length} elements")
    _list_rounding(b, (start + step * k for k in range(length)) if isinstance(length, int) else (length,))
    return b.full(0, (0,)) if length == 0 else b.iota(length, start, step)


@operator(aten.eye.default, aten.eye.m)
def eye(b: Builder, n: Size, dtype: torch.dtype | None, m: Size | None = None) -> View:
    """Ones where row and column are equal."""
    return b.equal(b.unsqueeze(b.iota(n), 1), b.iota(n if m is None else m))


@operator(aten.linspace.default)
def linspace(b: Builder, start: Number, end: Number, steps: int, dtype: torch.dtype | None) -> View:
    """``start + i (end - start) / (steps - 1)``."""
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in (start, end, steps)) or b.call.dtype is None:
        raise UnsupportedError(UNREPRESENTABLE, f"linspace({start}, {end}, {steps})")
    if not b.call.dtype.is_floating_point:
        raise UnsupportedError(UNSUPPORTED, f"linspace in {b.call.dtype}")
    if steps == 1:
        return b.full(start, (1,))
    _list_rounding(b, (start + (end - start) * k / (steps - 1) for k in range(steps)))
    first, last = b.scalar(start), b.scalar(end)
    step = divide(add(last, -first), as_scalar(steps - 1))
    return b.combination((step, b.iota(steps)), (first, b.full(1, (steps,))))


@operator(aten.linspace.Tensor_Tensor)
def linspace_of_tensors(b: Builder, start: View, end: View, steps: int, dtype: torch.dtype | None) -> View:
    """The same from one number without dimensions to another."""
    dtypes = {b.dtype_of("start"), b.dtype_of("end"), b.call.dtype}
    if not all(found is not None and found.is_floating_point for found in dtypes):
        raise UnsupportedError(UNSUPPORTED, f"linspace in {b.call.dtype}")
    if b.rank(start) or b.rank(end) or steps < 1:
        raise UnsupportedError(UNREPRESENTABLE, f"linspace in {steps} steps")
    if steps == 1:
        return b.unsqueeze(start, 0)
    position = b.scale(b.iota(steps), divide(as_scalar(1), as_scalar(steps - 1)))
    return b.add(b.mul(b.sub(end, start), position), start)
