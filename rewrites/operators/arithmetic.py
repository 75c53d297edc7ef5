"""Arithmetic of whole numbers, powers, bounds by tensors, and logical reductions."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import sympy
import torch

from verifycompile.ir.inequality import is_whole
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import as_scalar, read
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, require_real, truth
from verifycompile.rewrites.operators.quotients import counted, is_from_zero_on
from verifycompile.rewrites.operators.reduction import extreme
from verifycompile.rewrites.registry import UNSUPPORTED, Handler, UnsupportedError, operator

aten = torch.ops.aten

POWER_OF_NUMBER = Operation("power_of_number")
POWER_OF_TENSOR = Operation("power_of_tensor")
ATAN2 = Operation("atan2")
NAN_TO_NUM = Operation("nan_to_num")
ANY = Operation("any", indicator=True)


@operator(aten.nan_to_num.default)
def nan_to_num(b: Builder, self: View, nan: float | None, posinf: float | None, neginf: float | None) -> View:
    """The defaults of the bounds depend on the dtype."""
    require_real(b, "self")
    return b.pointwise(NAN_TO_NUM, self, attributes=(nan, posinf, neginf, b.dtype_of("self")))


# ------------------------------------------------------------------------------------------------ division


def _quotient(b: Builder, left: View, right: View | Number, rounding: str | None) -> View:
    if b.call.dtype is torch.bool or (b.call.dtype is not None and b.call.dtype.is_complex):
        raise UnsupportedError(UNSUPPORTED, f"division with a result of {b.call.dtype}")
    if rounding in ("floor", "trunc"):
        whole = counted(b, left, right)
        if whole is not None:
            return whole[0]
    quotient = b.divide(left, right)
    if rounding is None:
        return quotient
    if rounding not in ("floor", "trunc"):
        raise UnsupportedError(UNSUPPORTED, f"division with rounding_mode={rounding}")
    if is_whole(quotient):
        return quotient
    is_floor = rounding == "floor" or (isinstance(right, int) and right > 0 and is_from_zero_on(b, left))
    return b.pointwise(FUNCTIONS["floor" if is_floor else "trunc"], quotient)


@operator(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_rounded(b: Builder, self: View, other: View | Number, rounding_mode: str | None) -> View:
    return _quotient(b, self, other, rounding_mode)


@operator(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(b: Builder, self: View, other: View | Number) -> View:
    return _quotient(b, self, other, "floor")


@operator(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(b: Builder, self: View, other: View | Number) -> View:
    """``x - y floor(x / y)``: it has the sign of the divisor."""
    whole = counted(b, self, other)
    if whole is not None:
        return whole[1]
    return b.sub(self, b.mul(_quotient(b, self, other, "floor"), other))


@operator(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(b: Builder, self: View, other: View | Number) -> View:
    """``x - y trunc(x / y)``: it has the sign of the dividend."""
    return b.sub(self, b.mul(_quotient(b, self, other, "trunc"), other))


# ------------------------------------------------------------------------------------------------ powers


@operator(aten.pow.Scalar)
def power_of_number(b: Builder, self: Number, exponent: View) -> View:
    require_real(b, "exponent")
    if isinstance(self, int | float) and 0 < self < math.inf:
        return b.exp(b.scale(exponent, _logarithm(self)))
    return b.pointwise(POWER_OF_NUMBER, exponent, attributes=(self,))


@functools.lru_cache(maxsize=4096)
def _logarithm(number: float) -> Fraction:
    """Precise enough that numbers which differ have others: programs write it rounded, which is read as the same where
    the number that was rounded is known.
    """
    precise = Fraction(str(sympy.log(as_scalar(number)).evalf(80)))
    written = read(float(precise), single=False)
    return written if abs(written - precise) < Fraction(1, 10**55) else precise


@operator(aten.pow.Tensor_Tensor)
def power_of_tensor(b: Builder, self: View, exponent: View) -> View:
    require_real(b, "self", "exponent")
    return b.pointwise(POWER_OF_TENSOR, self, exponent)


@operator(aten.logaddexp.default)
def logaddexp(b: Builder, self: View, other: View) -> View:
    require_real(b, "self", "other")
    return b.log(b.add(b.exp(self), b.exp(other)))


@operator(aten.atan2.default)
def atan2(b: Builder, self: View, other: View) -> View:
    require_real(b, "self", "other")
    return b.pointwise(ATAN2, self, other)


# ------------------------------------------------------------------------------------------------ truth values


def any_over(b: Builder, view: View, dims: Sequence[int] | int | None, keepdim: bool) -> View:
    """Whether some element over ``dims`` is not zero."""
    value = truth(b, view)
    rank = b.rank(value)
    chosen = (
        sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)})
        if dims is not None and rank
        else list(range(rank))
    )
    if not rank or not chosen:
        return value
    if any(b.shape(value)[d] == 0 for d in chosen):
        kept = [1 if d in chosen else size for d, size in enumerate(b.shape(value))]
        return b.full(0, kept if keepdim else [size for d, size in enumerate(kept) if d not in chosen])
    with contextlib.suppress(UnalignedError):
        return extreme(b, value, chosen, keepdim, "max")
    order = [d for d in range(rank) if d not in chosen]
    names = [f"d{d}" for d in range(rank)]
    result = b.core(
        ANY,
        (),
        f"{' '.join(names)} -> {' '.join(names[d] for d in order)}",
        value,
        cores=" ".join(names[d] for d in chosen),
    )
    for d in chosen if keepdim else ():
        result = b.unsqueeze(result, d)
    return result


def _any(b: Builder, self: View, dim: Sequence[int] | int | None = None, keepdim: bool = False) -> View:
    return any_over(b, self, dim, keepdim)


def _all(b: Builder, self: View, dim: Sequence[int] | int | None = None, keepdim: bool = False) -> View:
    """Not any that is zero."""
    return b.negate(any_over(b, b.negate(truth(b, self)), dim, keepdim))


for _overload in ("default", "dim", "dims"):
    operator(getattr(aten.any, _overload))(_any)
    operator(getattr(aten.all, _overload))(_all)


@operator(aten.logical_xor.default)
def logical_xor(b: Builder, self: View, other: View) -> View:
    return b.negate(b.equal(truth(b, self), truth(b, other)))


QUESTIONS = {
    name: Operation(name, indicator=True) for name in ("isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit")
}
"""Questions about one number, whose answer is 0 or 1."""


def _question(operation: Operation) -> Handler:
    def handler(b: Builder, self: View) -> View:
        return b.pointwise(operation, self)

    return handler


for _name, _operation in QUESTIONS.items():
    if hasattr(getattr(aten, _name, None), "default"):
        operator(getattr(aten, _name).default)(_question(_operation))
