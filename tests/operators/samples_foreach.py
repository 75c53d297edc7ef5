"""Sample calls of operators over lists of tensors, which optimizers and gradient clipping call."""

from __future__ import annotations

import math

import torch
import torch._inductor.inductor_prims

from tests.operators.samples import add, positive, real

aten = torch.ops.aten

add(torch.ops.prims.fma.default, real(3, 4), real(3, 4), real(3, 4))
add(torch.ops.prims.fma.default, real(3, 4), real(), real(3, 4))
add(aten.lerp.Tensor, real(3, 4), real(3, 4), real(3, 4))
add(aten.lerp.Tensor, real(3, 4), real(3, 4), real())


def reals() -> list[torch.Tensor]:
    return [real(3, 4), real(5)]


def positives() -> list[torch.Tensor]:
    return [positive(3, 4), positive(5)]


for _name in ("add", "sub", "mul", "div"):
    _operator = getattr(aten, f"_foreach_{_name}")
    add(_operator.List, reals(), positives())
    add(_operator.Scalar, reals(), 1.5)
    add(_operator.ScalarList, reals(), [0.5, -2.0])
for _name in ("add", "sub"):
    add(getattr(aten, f"_foreach_{_name}").List, reals(), reals(), alpha=-0.5)
add(aten._foreach_add.Tensor, reals(), real())
add(aten._foreach_add.Tensor, reals(), real(), alpha=2.5)
add(aten._foreach_mul.Tensor, reals(), real())
add(aten._foreach_div.Tensor, reals(), positive())
for _name in ("clamp_min", "clamp_max", "maximum", "minimum"):
    _operator = getattr(aten, f"_foreach_{_name}")
    add(_operator.List, reals(), reals())
    add(_operator.Scalar, reals(), 0.3)
    add(_operator.ScalarList, reals(), [0.5, -0.25])
for _name in ("addcmul", "addcdiv"):
    _operator = getattr(aten, f"_foreach_{_name}")
    add(_operator.Scalar, reals(), reals(), positives(), 0.3)
    add(_operator.ScalarList, reals(), reals(), positives(), [0.3, -2.0])
    add(_operator.Tensor, reals(), reals(), positives(), real(2))
add(aten._foreach_lerp.Scalar, reals(), reals(), 0.3)
add(aten._foreach_lerp.ScalarList, reals(), reals(), [0.3, 0.8])
add(aten._foreach_lerp.List, reals(), reals(), reals())
add(aten._foreach_pow.List, positives(), reals())
add(aten._foreach_pow.Scalar, reals(), 2)
add(aten._foreach_pow.Scalar, positives(), 0.5)
add(aten._foreach_pow.ScalarList, positives(), [2, -0.5])
add(aten._foreach_pow.ScalarAndTensor, 0.9, reals())
for _order in (1, 2, math.inf):
    add(aten._foreach_norm.Scalar, reals(), _order)
add(aten._foreach_max.default, reals())
add(aten._foreach_copy.default, reals(), reals())
add(aten._foreach_clone.default, reals())
add(aten._foreach_zero.default, reals())
for _name in (
    "abs", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "neg", "reciprocal", "round",
    "sigmoid", "sign", "sin", "sinh", "tan", "tanh", "trunc",
):  # fmt: skip
    add(getattr(aten, f"_foreach_{_name}").default, reals())
for _name in ("lgamma", "log", "log10", "log1p", "log2", "rsqrt", "sqrt"):
    add(getattr(aten, f"_foreach_{_name}").default, positives())
for _name in ("acos", "asin"):
    add(getattr(aten, f"_foreach_{_name}").default, [v.sin() for v in reals()])
