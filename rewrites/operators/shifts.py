"""Shifts, low bits and common divisors of whole numbers.

Shifts by numbers are multiples and quotients, low bits are remainders. All others are taken as they are, element by
element: a shift drops bits beyond the width of its dtype, so the dtype belongs to the operation.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from verifycompile.ir.term import UNIT, Operation, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operators.arithmetic import floor_divide, remainder
from verifycompile.rewrites.operators.integers import require_whole
from verifycompile.rewrites.registry import Handler, operator

aten = torch.ops.aten

SHIFTS = {side: Operation(f"bitwise_{side}_shift") for side in ("left", "right")}
DIVISORS = {kind: Operation(kind, commutative=True) for kind in ("gcd", "lcm")}


def _shift(side: str) -> Handler:
    def handler(b: Builder, self: View | Number, other: View | Number) -> View:
        if isinstance(other, int) and 0 <= other < torch.iinfo(require_whole(b)).bits and isinstance(self, View):
            if side == "right":
                return floor_divide(b, self, 2**other)
            if b.call.dtype is torch.int64:
                return b.scale(self, 2**other)
        return b.pointwise(SHIFTS[side], self, other, attributes=(require_whole(b),))

    return handler


for _side, _legacy in (("left", aten.__lshift__), ("right", aten.__rshift__)):
    _operator = getattr(aten, f"bitwise_{_side}_shift")
    for _target in (_operator.Tensor, _operator.Tensor_Scalar, _operator.Scalar_Tensor, _legacy.Tensor, _legacy.Scalar):
        operator(_target)(_shift(_side))


def low_bits(b: Builder, left: View, right: View) -> View | None:
    """``x & 7``, the remainder by 8, of negative numbers too; None where no operand is such a number."""
    for value, number in ((left, right), (right, left)):
        mask = number.coefficient if number.term.operation is UNIT else None
        if isinstance(mask, Fraction) and mask > 0 and mask.denominator == 1 and (int(mask) & int(mask) + 1) == 0:
            return remainder(b, value, int(mask) + 1)
    return None


def _divisor(kind: str) -> Handler:
    def handler(b: Builder, self: View, other: View) -> View:
        require_whole(b)
        return b.pointwise(DIVISORS[kind], self, other)

    return handler


operator(aten.gcd.default)(_divisor("gcd"))
operator(aten.lcm.default)(_divisor("lcm"))
