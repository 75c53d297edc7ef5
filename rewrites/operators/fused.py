"""Arithmetic of three operands, angles, and directions."""

from __future__ import annotations

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, require_exact, require_real
from verifycompile.rewrites.registry import operator
from verifycompile.torch_interface.operators.prims import FUSED_MULTIPLY_ADD

aten = torch.ops.aten


@operator(aten.addcmul.default)
def addcmul(b: Builder, self: View, tensor1: View, tensor2: View, value: Number) -> View:
    require_exact(b, value=value)
    return b.combination((1, self), (value, b.mul(tensor1, tensor2)))


@operator(aten.addcdiv.default)
def addcdiv(b: Builder, self: View, tensor1: View, tensor2: View, value: Number) -> View:
    require_real(b)
    return b.combination((1, self), (value, b.divide(tensor1, tensor2)))


@operator(FUSED_MULTIPLY_ADD)
def fused_multiply_add(builder: Builder, a: View | Number, b: View | Number, c: View | Number) -> View:
    """``a * b + c``, rounded once."""
    require_real(builder)
    return builder.add(builder.mul(a, b), c)


@operator(aten.lerp.Scalar)
def lerp(b: Builder, self: View, end: View, weight: Number) -> View:
    return b.combination((1 - weight, self), (weight, end))


@operator(aten.lerp.Tensor)
def lerp_by_tensor(b: Builder, self: View, end: View, weight: View) -> View:
    require_real(b)
    return b.add(self, b.mul(weight, b.sub(end, self)))


DIRECTION = Operation("direction")


@operator(aten.sgn.default)
def sgn(b: Builder, self: View) -> View:
    """``sign``; of a complex number, the number of length 1 in its direction."""
    if b.call.dtype is not None and b.call.dtype.is_complex:
        return b.pointwise(DIRECTION, self)
    return b.pointwise(FUNCTIONS["sign"], self)
