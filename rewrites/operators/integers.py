"""Bits of whole numbers, and logic, which is torch's own on bits. Each but low bits is taken as it is."""

from __future__ import annotations

import torch

from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import INTEGER_DTYPES
from verifycompile.rewrites.registry import UNSUPPORTED, Handler, UnsupportedError, operator

aten = torch.ops.aten

BITS = {kind: Operation(f"bitwise_{kind}", commutative=True) for kind in ("and", "or", "xor")}


def require_whole(b: Builder) -> torch.dtype:
    """The dtype of the result, which is one of whole numbers, as then all operands are."""
    dtype = b.call.dtype
    if dtype not in INTEGER_DTYPES:
        raise UnsupportedError(UNSUPPORTED, f"an operator on whole numbers whose result is of {dtype}")
    return dtype


def _of_booleans(b: Builder, kind: str, left: View, right: View) -> View:
    if kind == "and":
        return b.mul(left, right)
    return b.either(left, right) if kind == "or" else b.negate(b.equal(left, right))


def _bitwise(kind: str) -> Handler:
    def handler(b: Builder, self: View | Number, other: View | Number) -> View:
        left, right = b.aligned(self, other)
        if b.call.dtype is torch.bool:
            if not is_indicator(left) or not is_indicator(right):
                raise UnsupportedError(UNSUPPORTED, "a logical operator on a value that is not known to be boolean")
            return _of_booleans(b, kind, left, right)
        require_whole(b)
        from verifycompile.rewrites.operators.shifts import low_bits  # here, because few programs compute with bits

        found = low_bits(b, left, right) if kind == "and" else None
        return b.pointwise(BITS[kind], left, right) if found is None else found

    return handler


for _kind in BITS:
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        operator(getattr(getattr(aten, f"bitwise_{_kind}"), _overload))(_bitwise(_kind))


@operator(aten.bitwise_not.default)
def bitwise_not(b: Builder, self: View) -> View:
    """Of integers it is ``-x - 1``, of those that hold 0 and 1 too."""
    if b.call.dtype is torch.bool:
        if not is_indicator(self):
            raise UnsupportedError(UNSUPPORTED, "a logical operator on a value that is not known to be boolean")
        return b.negate(self)
    require_whole(b)
    return b.combination((-1, self), (-1, 1))
