"""Shifts and common divisors of whole numbers. Each is taken as it is, element by element.

A shift drops bits beyond the width of its dtype, so the dtype belongs to the operation; no other one depends on it.
"""

from __future__ import annotations

import torch

from verifycompile.ir.term import Operation, View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.integers import require_whole
from verifycompile.rewrites.registry import Handler, operator

aten = torch.ops.aten

SHIFTS = {side: Operation(f"bitwise_{side}_shift") for side in ("left", "right")}
DIVISORS = {kind: Operation(kind, commutative=True) for kind in ("gcd", "lcm")}


def _shift(side: str) -> Handler:
    def handler(b: Builder, self: View | Number, other: View | Number) -> View:
        return b.pointwise(SHIFTS[side], self, other, attributes=(require_whole(b),))

    return handler


for _side, _legacy in (("left", aten.__lshift__), ("right", aten.__rshift__)):
    _operator = getattr(aten, f"bitwise_{_side}_shift")
    for _target in (_operator.Tensor, _operator.Tensor_Scalar, _operator.Scalar_Tensor, _legacy.Tensor, _legacy.Scalar):
        operator(_target)(_shift(_side))


def _divisor(kind: str) -> Handler:
    def handler(b: Builder, self: View, other: View) -> View:
        require_whole(b)
        return b.pointwise(DIVISORS[kind], self, other)

    return handler


operator(aten.gcd.default)(_divisor("gcd"))
operator(aten.lcm.default)(_divisor("lcm"))
