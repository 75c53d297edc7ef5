"""Sample calls of every declared ATen operator, in float64 unless the operator wants something else."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.operators.call import Sample, Target
from verifycompile.rewrites.registry import RANDOM

aten = torch.ops.aten
prims = torch.ops.prims

_generator = torch.Generator().manual_seed(0)
F64 = {"dtype": torch.float64}


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=_generator)


def positive(*shape: int) -> torch.Tensor:
    return real(*shape).abs() + 0.5


def unit(*shape: int) -> torch.Tensor:
    """Numbers strictly between -1 and 1."""
    return torch.rand(shape, dtype=torch.float64, generator=_generator) * 1.8 - 0.9


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_generator)


def truth(*shape: int) -> torch.Tensor:
    return whole(2, *shape).bool()


SAMPLES: list[Sample] = []
REFUSED: list[tuple[Sample, str]] = []
"""Calls outside of a declaration, with the blocker that names them."""


def add(target: Target, *args: Any, **kwargs: Any) -> None:
    SAMPLES.append(Sample(target, args, kwargs))


def refuse(message: str, target: Target, *args: Any, **kwargs: Any) -> None:
    REFUSED.append((Sample(target, args, kwargs), message))


# ------------------------------------------------------------------------------------------------ element-wise

for _operator in (aten.add, aten.sub, aten.rsub):
    add(_operator.Tensor, real(3, 4), real(3, 4))
    add(_operator.Tensor, real(3, 4), real(4), alpha=2.5)
    add(_operator.Tensor, real(1, 4), real(3, 1), alpha=-1)
    add(_operator.Tensor, real(3, 4), real(), alpha=3)
    add(_operator.Scalar, real(3, 4), 1.5)
    add(_operator.Scalar, real(3, 4), 2, 3)
add(aten.add.Tensor, real(2, 3), 0.75)
for _operator in (aten.mul, aten.div):
    add(_operator.Tensor, real(3, 4), real(3, 4))
    add(_operator.Tensor, real(3, 1), positive(2, 1, 4))
    add(_operator.Tensor, real(3, 4), 0.3)
    add(_operator.Scalar, real(3, 4), -1.5)
_x = real(3, 4)
add(aten.mul.Tensor, _x, _x)
add(aten.mul.Tensor, whole(5, 3, 4), whole(5, 3, 4))
add(aten.div.Tensor, whole(5, 3, 4), 2)
add(aten.div.Tensor, whole(9, 3), whole(4, 3) + 1)
add(aten.neg.default, real(3, 4))
add(aten.square.default, real(3, 4))
for _exponent in (2, 3, 0, 1, 4, -1, -2, 5.0):
    add(aten.pow.Tensor_Scalar, real(3, 4), _exponent)
for _exponent in (0.5, -0.5, 1.7):
    add(aten.pow.Tensor_Scalar, positive(3, 4), _exponent)
    add(aten.pow.Tensor_Scalar, real(3, 4), _exponent)
for _operator in (aten.sqrt, aten.rsqrt, aten.reciprocal, aten.log, aten.log2, aten.log10):
    add(_operator.default, positive(3, 4))
    add(_operator.default, real(3, 4))
for _operator in (
    aten.abs, aten.atan, aten.ceil, aten.cos, aten.cosh, aten.erf, aten.erfc, aten.exp, aten.exp2, aten.expm1,
    aten.floor, aten.round, aten.sigmoid, aten.sign, aten.sin, aten.sinh, aten.tan, aten.tanh, aten.trunc,
):  # fmt: skip
    add(_operator.default, real(3, 4))
for _operator in (aten.acos, aten.asin, aten.log1p):
    add(_operator.default, unit(3, 4))
add(aten.lgamma.default, positive(3, 4))
add(aten.addcmul.default, real(3, 4), real(3, 4), real(4), value=0.5)
add(aten.addcdiv.default, real(3, 4), real(3, 4), positive(3, 1), value=-2)
add(aten.lerp.Scalar, real(3, 4), real(3, 4), 0.25)
for _operator in (aten.maximum, aten.minimum):
    add(_operator.default, real(3, 4), real(3, 4))
    add(_operator.default, real(3, 4), real(4))
add(aten.clamp.default, real(3, 4), -0.5, 0.5)
add(aten.clamp.default, real(3, 4), None, 0.5)
add(aten.clamp.default, real(3, 4), 0.1)
add(aten.clamp.default, real(3, 4), 0.7, -0.7)
add(aten.clamp_min.default, real(3, 4), 0.1)
add(aten.clamp_max.default, real(3, 4), 0.1)
for _operator in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge):
    add(_operator.Tensor, whole(3, 3, 4), whole(3, 3, 4))
    add(_operator.Tensor, whole(3, 3, 4).double(), whole(3, 4))
    add(_operator.Scalar, whole(3, 3, 4), 1)
    add(_operator.Scalar, real(3, 4), 0.25)
for _operator in (aten.logical_not, aten.bitwise_not):
    add(_operator.default, truth(3, 4))
for _operator in (
    aten.logical_and.default, aten.logical_or.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
    aten.maximum.default, aten.minimum.default, aten.eq.Tensor, aten.lt.Tensor, aten.le.Tensor,
):  # fmt: skip
    add(_operator, truth(3, 4), truth(3, 4))
    add(_operator, truth(3, 4), truth(4))
add(aten.where.self, truth(3, 4), real(3, 4), real(3, 4))
add(aten.where.self, truth(3, 4), truth(3, 4), truth(4))
add(aten.where.self, truth(3, 1), real(4), real(3, 4))
add(aten.where.self, truth(3, 4), real(3, 4), torch.zeros((), dtype=torch.float64))
add(aten.where.ScalarSelf, truth(3, 4), 0.0, real(3, 4))
add(aten.where.ScalarSelf, truth(3, 4), 1.5, real(3, 4))
add(aten.where.ScalarOther, truth(3, 4), real(3, 4), 0)
add(aten.where.ScalarOther, truth(3, 1), real(3, 4), 2.5)
add(aten.where.Scalar, truth(3, 4), 1.0, 0.0)
add(aten.where.Scalar, truth(3, 4), -math.inf, 0.0)
add(aten.masked_fill.Scalar, real(3, 4), truth(3, 4), 0)
add(aten.masked_fill.Scalar, real(3, 4), truth(4), -math.inf)
add(aten.masked_fill.Scalar, real(4), truth(3, 4), 2.0)
add(aten.masked_fill.Scalar, real(3, 4), torch.ones(4, dtype=torch.bool), 2.0)
add(aten.masked_fill.Scalar, truth(3, 4), truth(4), True)
add(aten.masked_fill.Scalar, truth(4), truth(3, 4), False)
add(aten.masked_fill.Scalar, truth(3, 4), truth(3, 4), 2)
add(aten.masked_fill.Tensor, real(3, 4), truth(3, 1), real())
for _operator in (aten.tril, aten.triu):
    add(_operator.default, real(4, 4))
    add(_operator.default, real(2, 3, 5), 1)
    add(_operator.default, real(4, 3), -1)
add(aten._to_copy.default, real(3, 4), dtype=torch.float32)
add(aten._to_copy.default, real(3, 4) * 3, dtype=torch.int64)
add(aten._to_copy.default, whole(3, 3, 4), dtype=torch.bool)
add(aten._to_copy.default, truth(3, 4), dtype=torch.float64)
add(aten._to_copy.default, real(3, 4))
add(prims.convert_element_type.default, whole(3, 3, 4), torch.float64)
add(prims.convert_element_type.default, real(3, 4), torch.int64)

add(aten.add.Tensor, truth(3, 4), truth(4))
add(aten.masked_fill.Tensor, whole(5, 3, 4), truth(3, 1), whole(5))

# ------------------------------------------------------------------------------------------------ complex numbers


def complex_numbers(*shape: int) -> torch.Tensor:
    return torch.complex(real(*shape), real(*shape))


add(aten.view_as_complex.default, real(3, 4, 2))
add(aten.view_as_real.default, complex_numbers(3, 4))
add(aten._conj.default, complex_numbers(3, 4))
add(aten.conj_physical.default, complex_numbers(3, 4))
add(aten._conj_physical.default, complex_numbers(3, 4))
add(aten.resolve_conj.default, complex_numbers(3, 4))
add(aten.polar.default, positive(3, 4), real(3, 4))
add(aten.complex.default, real(3, 4), real(3, 4))
add(aten.mul.Tensor, complex_numbers(3, 4), complex_numbers(4))
add(aten.mm.default, complex_numbers(3, 4), complex_numbers(4, 2))
add(aten.mul.Scalar, complex_numbers(3, 4), 1j)
add(aten.mul.Tensor, complex_numbers(3), 0.5 - 2j)
add(aten.exp.default, complex_numbers(3))
add(aten.log.default, complex_numbers(3))

# ------------------------------------------------------------------------------------------------ activations

add(aten.relu.default, real(3, 4))
add(aten.threshold_backward.default, real(3, 4), real(3, 4), 0)
add(aten.threshold_backward.default, real(3, 4), real(3, 4), 0.25)
add(aten.threshold_backward.default, real(3, 4), whole(3, 3, 4).double() - 1, 0)
for _approximate in ("none", "tanh"):
    add(aten.gelu.default, real(3, 4), approximate=_approximate)
    add(aten.gelu_backward.default, real(3, 4), real(3, 4), approximate=_approximate)
add(aten.silu.default, real(3, 4))
add(aten.silu_backward.default, real(3, 4), real(3, 4))
add(aten.sigmoid_backward.default, real(3, 4), positive(3, 4))
add(aten.tanh_backward.default, real(3, 4), unit(3, 4))
add(aten.softplus.default, real(3, 4) * 3)
add(aten.softplus.default, real(3, 4) * 3, 2, 1.5)
add(aten.softplus_backward.default, real(3, 4), real(3, 4) * 3, 1, 20)
add(aten.softplus_backward.default, real(3, 4), real(3, 4) * 3, 2, 1.5)

# ------------------------------------------------------------------------------------------------ products and sums

add(aten.mm.default, real(3, 4), real(4, 5))
_square = real(4, 4)
add(aten.mm.default, _square, _square)
add(aten.mm.default, real(3, 1), real(1, 2))
add(aten.bmm.default, real(2, 3, 4), real(2, 4, 5))
add(aten.mv.default, real(3, 4), real(4))
add(aten.dot.default, real(4), real(4))
add(aten.addmm.default, real(5), real(3, 4), real(4, 5))
add(aten.addmm.default, real(3, 5), real(3, 4), real(4, 5), beta=0.5, alpha=2)
add(aten.addmm.default, real(), real(3, 4), real(4, 5), beta=0, alpha=2)
add(aten.baddbmm.default, real(2, 3, 5), real(2, 3, 4), real(2, 4, 5), beta=0.5, alpha=2)
add(aten.baddbmm.default, real(3, 5), real(2, 3, 4), real(2, 4, 5))
add(aten.baddbmm.default, real(3, 5), real(2, 3, 4), real(2, 4, 5), beta=0)
for _shapes in (((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((3, 4), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))):
    add(aten.matmul.default, real(*_shapes[0]), real(*_shapes[1]))
add(aten.matmul.default, real(2, 1, 3, 4), real(3, 4, 5))
add(aten.matmul.default, real(2, 3, 4), real(4, 5))
add(aten.matmul.default, real(3, 4), real(2, 4, 5))
add(aten.linear.default, real(2, 3, 4), real(5, 4))
add(aten.linear.default, real(3, 4), real(5, 4), real(5))
add(aten.linear.default, real(4), real(5, 4), real(5))
for _operator in (aten.sum, aten.mean):
    _dims = _operator.dim_IntList if _operator is aten.sum else _operator.dim
    add(_operator.default, real(3, 4))
    add(_operator.default, real())
    add(_dims, real(2, 3, 4), [1])
    add(_dims, real(2, 3, 4), [-1, 0], True)
    add(_dims, real(2, 3, 4), [])
    add(_dims, real(2, 3, 4), None, True)
    add(_dims, whole(5, 2, 3), [0], dtype=torch.float64)
    add(_dims, real(2, 3), [0], dtype=torch.float32)
    add(_operator.default, whole(5, 2, 3), dtype=torch.float64)
add(aten.sum.default, truth(3, 4))
add(aten.sum.dim_IntList, truth(3, 4), [1])
add(aten.sum.dim_IntList, real(3, 4) * 3, [1], dtype=torch.int64)
for _operator in (aten.amax, aten.amin):
    add(_operator.default, real(2, 3, 4))
    add(_operator.default, real(2, 3, 4), [1])
    add(_operator.default, real(2, 3, 4), [-1, 0], True)
add(aten.max.default, real(3, 4))
add(aten.min.default, real(3, 4))

# ------------------------------------------------------------------------------------------------ creation

for _dtype in (torch.float64, torch.int64, torch.bool):
    add(aten.full.default, [2, 3], 2, dtype=_dtype)
    add(aten.full_like.default, real(2, 3), 2, dtype=_dtype)
    add(aten.new_full.default, real(2, 3), [4], 2, dtype=_dtype)
    add(aten.zeros.default, [2, 3], dtype=_dtype)
    add(aten._efficientzerotensor.default, [2, 3], dtype=_dtype)
    add(aten.ones.default, [2, 3], dtype=_dtype)
    add(aten.zeros_like.default, real(2, 3), dtype=_dtype)
    add(aten.ones_like.default, real(2, 3), dtype=_dtype)
    add(aten.new_zeros.default, real(2, 3), [4], dtype=_dtype)
    add(aten.new_ones.default, real(2, 3), [4], dtype=_dtype)
    add(aten.scalar_tensor.default, 2, dtype=_dtype)
    add(aten.eye.default, 3, dtype=_dtype)
    add(aten.eye.m, 3, 2, dtype=_dtype)
add(aten.full.default, [2, 3], 2.5, dtype=torch.float64)
refuse("VC202 the value 2.5 in a tensor of torch.int64", aten.full.default, [2, 3], 2.5, dtype=torch.int64)
add(aten.full.default, [2, 3], -math.inf)
add(aten.full.default, [2, 3], True)
add(aten.full.default, [], 7)
refuse("VC202 the value 2.5 in a tensor of torch.int64", aten.full_like.default, whole(3, 2), 2.5)
add(aten.full_like.default, truth(2), 2)
refuse("VC202 the value 2.5 in a tensor of torch.int64", aten.new_full.default, whole(3, 2), [2], 2.5)
refuse("VC202 the value -2.5 in a tensor of torch.int64", aten.scalar_tensor.default, -2.5, dtype=torch.int64)
add(aten.arange.default, 5)
add(aten.arange.default, 5, dtype=torch.float64)
add(aten.arange.default, 2.5)
add(aten.arange.default, 2.5, dtype=torch.int64)
add(aten.arange.start, 2, 7)
add(aten.arange.start, 2.0, 7.0, dtype=torch.int64)
add(aten.arange.start_step, 2, 9, 3)
add(aten.arange.start_step, 9, 2, -2)
add(aten.arange.start_step, 0, 1, 0.25)
add(aten.arange.start_step, 2.5, -1, -0.75)
add(prims.iota.default, 5, start=2, step=3, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)

# ------------------------------------------------------------------------------------------------ lookups

add(aten.embedding.default, real(6, 4), whole(6, 2, 3))
add(aten.embedding.default, real(6, 4), whole(6, 3), 2, False, False)
add(aten.embedding.default, real(6, 4), whole(6))
add(aten.embedding_dense_backward.default, real(2, 3, 4), whole(6, 2, 3), 6, -1, False)
add(aten.embedding_dense_backward.default, real(9, 4), whole(6, 9), 6, 2, False)
refuse(
    "VC202 embedding with scale_grad_by_freq=True",
    aten.embedding_dense_backward.default,
    real(9, 4),
    whole(6, 9),
    6,
    -1,
    True,
)
add(aten.gather.default, real(3, 4), 1, whole(4, 3, 2))
add(aten.gather.default, real(3, 4), -2, whole(3, 2, 4))
add(aten.gather.default, real(3, 4), 0, whole(3, 5, 2))
add(aten.gather.default, real(2, 3, 4), 1, whole(3, 2, 1, 3))
add(aten.gather.default, real(), 0, whole(1))
add(aten.index_select.default, real(3, 4), 1, whole(4, 6))
add(aten.index_select.default, real(3, 4), -2, whole(3, 2))
_mask = truth(3, 4)
add(aten.index_put.default, real(3, 4), [_mask], real())
add(aten.index_put.default, real(3, 4), [truth(3)], torch.zeros((), dtype=torch.float64))
add(aten.index_put.default, real(3, 4), [truth(3, 4)], real(1))
for _accumulate in (False, True):
    add(aten.index_put.default, real(3, 4), [truth(3)], real(4), _accumulate)
    add(aten.index_put.default, real(3, 4), [truth(3)], real(1, 4), _accumulate)
    add(aten.index_put.default, real(3, 2, 4), [truth(3, 2)], real(), _accumulate)
add(aten.index_put.default, real(3, 4), [torch.tensor([2])], real(1, 4))
add(aten.index_put.default, real(3, 4), [None, torch.tensor([-1])], real(3, 1))
add(aten.index_put.default, real(2, 3, 4), [None, torch.tensor([1])], real(4))
add(
    aten.index_put.default,
    real(3, 4),
    [whole(3, 2)],
    real(),
)
add(
    aten.index_put.default,
    real(3, 4),
    [whole(3, 2), whole(4, 2)],
    real(),
)
add(
    aten.index_put.default,
    real(2, 4),
    [torch.zeros(2, dtype=torch.int64)],
    real(),
)
refuse(
    "VC202 index_put with a mask and more than one value",
    aten.index_put.default,
    real(3, 4),
    [_mask],
    real(int(_mask.sum())),
)

# ------------------------------------------------------------------------------------------------ layout

for _overload in (aten.detach, aten.alias, aten.lift_fresh_copy, aten.contiguous, aten.clone):
    add(_overload.default, real(3, 4))
for _overload in (aten.view, aten._unsafe_view, aten._reshape_copy, aten.reshape):
    add(_overload.default, real(3, 4), [12])
    add(_overload.default, real(2, 6), [2, -1, 3])
    add(_overload.default, real(6, 4), [3, 8])
    add(_overload.default, real(6, 4), [8, 3])
    add(_overload.default, real(4, 6), [3, 8])
    add(_overload.default, real(1), [])
add(aten.t.default, real(3, 4))
add(aten.t.default, real(4))
add(aten.transpose.int, real(2, 3, 4), 0, -1)
add(aten.transpose.int, real(2, 3, 4), -2, 2)
add(aten.transpose.int, real(), 0, -1)
add(aten.permute.default, real(2, 3, 4), [2, 0, 1])
add(aten.permute.default, real(2, 3, 4), [-1, -3, -2])
add(aten.expand.default, real(3, 1), [3, 4])
add(aten.expand.default, real(3, 1), [2, -1, 4])
add(aten.expand.default, real(), [2, 3])
add(aten.unsqueeze.default, real(3, 4), 1)
add(aten.unsqueeze.default, real(3, 4), -1)
add(aten.squeeze.dim, real(3, 1, 4), 1)
add(aten.squeeze.dim, real(3, 1, 4), -1)
add(aten.squeeze.dims, real(1, 3, 1), [0, -1])
add(aten.squeeze.dims, real(1, 3, 1), [])
add(aten.squeeze.default, real(1, 3, 1))
add(aten.select.int, real(3, 4), 1, 2)
add(aten.select.int, real(3, 4), -2, -1)
for _slice in ((0, None, None), (1, 0, 2), (1, 1, 3), (-1, -3, -1), (0, 0, 2**63 - 1)):
    add(aten.slice.Tensor, real(4, 4), *_slice)
for _slice in ((0, None, None), (1, 0, 2), (1, 1, 3), (-1, -3, -1), (0, 0, 2**63 - 1), (1, 0, 4, 2)):
    add(aten.slice_copy.Tensor, real(4, 4), *_slice)
for _slice in ((1, 0, 6, 2), (1, 1, 6, 2), (1, 1, 6, 3), (1, 0, 5, 2), (1, 2, 6, 3), (1, 0, 6, 4)):
    add(aten.slice.Tensor, real(3, 6), *_slice)
add(aten.split.Tensor, real(6, 4), 2)
add(aten.split.Tensor, real(6, 4), 4)
add(aten.split.Tensor, real(4, 6), 3, -1)
add(aten.split_with_sizes.default, real(6, 4), [1, 3, 2])
add(aten.split_with_sizes.default, real(4, 6), [3, 3], 1)
add(aten.chunk.default, real(6, 4), 3)
add(aten.chunk.default, real(4, 6), 2, -1)
add(aten.chunk.default, real(5, 4), 2)
add(aten.unbind.int, real(3, 4))
add(aten.unbind.int, real(3, 4), -1)
add(aten.cat.default, [real(2, 3), real(4, 3)])
add(aten.cat.default, [real(2, 3), real(2, 1), real(2, 3)], -1)
add(aten.cat.default, [real(0), real(2, 3)], 1)
add(aten.cat.default, [real(2, 4), real(2, 0), real(2, 4)], 1)
add(aten.histc.default, real(7, 2), 4, -1.5, 1.5)
add(aten.histc.default, whole(4, 9).double(), 4, 0, 3)
_ends = torch.tensor([3, 3, 8], dtype=torch.int32)
add(aten._grouped_mm.default, real(8, 16).float(), real(3, 16, 8).float(), _ends)
add(aten._grouped_mm.default, real(16, 8).float().T.contiguous().T, real(8, 16).float(), _ends)
add(aten._grouped_mm.default, real(3, 8, 16).float(), real(16, 8).float(), _ends)
add(aten._grouped_mm.default, real(3, 8, 16).float(), real(3, 16, 8).float())
add(aten.histc.default, real(5, 6).topk(3)[1].double(), 4, 0, 3)
add(aten.histc.default, real(2, 7), 1, 0, 0)
add(aten.histc.default, real(4, 6).topk(3)[1].double(), 6, 0, 6)
refuse("VC202 bincount of numbers that may not be within [0, 6)", aten.bincount.default, whole(4, 9), None, 6)
refuse("VC202 histc between the smallest and the largest element", aten.histc.default, real(7), 4)
add(aten.cat.default, [real(2, 3)], 0)
add(aten.cat.default, [real(2, 3), whole(4, 2, 3)], 0)
_twice = real(2, 3)
add(aten.cat.default, [_twice, _twice], 1)
add(aten.stack.default, [real(2, 3), real(2, 3)])
add(aten.stack.default, [real(2, 3), real(2, 3), real(2, 3)], -1)
add(aten.stack.default, [real(), real()])
add(aten.slice_backward.default, real(3, 2), [3, 6], 1, 2, 4, 1)
add(aten.slice_backward.default, real(3, 2), [3, 6], -1, -2, 2**63 - 1, 1)
add(aten.slice_backward.default, real(3, 3), [3, 6], 1, 0, 6, 2)
add(aten.slice_backward.default, real(3, 2), [3, 6], -1, 1, 6, 3)
add(aten.select_backward.default, real(3), [3, 6], 1, 2)
add(aten.select_backward.default, real(6), [3, 6], -2, -1)
add(aten.constant_pad_nd.default, real(3, 4), [1, 2])
add(aten.constant_pad_nd.default, real(3, 4), [1, 0, 0, 2], 0.0)
add(aten.constant_pad_nd.default, real(3, 4), [-1, 2])
add(aten.constant_pad_nd.default, real(3, 4), [1, -2, -1, 0], 3.0)
add(aten.constant_pad_nd.default, real(3, 4), [1, 2], 3.0)
add(aten.constant_pad_nd.default, real(3, 4), [-1, -1], 3.0)
add(aten.repeat.default, real(2, 3), [2, 3])
add(aten.repeat.default, real(3), [2, 1, 2])
add(aten.repeat.default, real(), [2])

# ------------------------------------------------------------------------------------------------ losses

NONE, MEAN, SUM = 0, 1, 2
_target = torch.tensor([0, 3, 1, 3, 2])
for _reduction in (NONE, MEAN, SUM):
    for _weight in (None, positive(4)):
        for _ignored in (-100, 3):
            _call = (real(5, 4), _target, _weight, _reduction, _ignored)
            add(aten.nll_loss_forward.default, *_call)
            _total = aten.nll_loss_forward.default(*_call)[1]
            _grad = real(5) if _reduction == NONE else real()
            add(aten.nll_loss_backward.default, _grad, *_call, _total)
    add(aten.nll_loss_forward.default, real(4), torch.tensor(2), None, _reduction, -100)
    add(aten.mse_loss.default, real(3, 4), real(3, 4), _reduction)
    add(
        aten.mse_loss_backward.default, real(3, 4) if _reduction == NONE else real(), real(3, 4), real(3, 4), _reduction
    )
    add(aten.mse_loss_backward.default, real(), real(3, 4), real(3, 4), _reduction)
add(
    aten.nll_loss_backward.default,
    real(),
    real(4),
    torch.tensor(2),
    None,
    MEAN,
    -100,
    torch.ones((), dtype=torch.float64),
)
add(aten.nll_loss_backward.default, real(), real(5, 4), _target, None, MEAN, -100, positive())

# ------------------------------------------------------------------------------------------------ normalization

for _shape in ([4], [3, 4]):
    _x, _grad, _weight, _bias = real(2, 3, 4), real(2, 3, 4), real(*_shape), real(*_shape)
    add(aten.native_layer_norm.default, _x, _shape, _weight, _bias, 1e-5)
    add(aten.native_layer_norm.default, _x, _shape, None, None, 0.1)
    add(aten.native_layer_norm.default, _x, _shape, _weight, None, 1e-5)
    _, _mean, _rstd = aten.native_layer_norm.default(_x, _shape, _weight, _bias, 1e-5)
    for _wanted in ([True, True, True], [True, False, True], [False, True, False]):
        add(aten.native_layer_norm_backward.default, _grad, _x, _shape, _mean, _rstd, _weight, _bias, _wanted)
    add(aten.native_layer_norm_backward.default, _grad, _x, _shape, _mean, _rstd, None, None, [True, False, False])
    add(aten._fused_rms_norm.default, _x, _shape, _weight, 1e-5)
    add(aten._fused_rms_norm.default, _x, _shape, None, 0.1)
    add(aten._fused_rms_norm.default, _x, _shape, _weight, None)
    _, _rstd = aten._fused_rms_norm.default(_x, _shape, _weight, 1e-5)
    add(aten._fused_rms_norm_backward.default, _grad, _x, _shape, _rstd, _weight, [True, True])
    add(aten._fused_rms_norm_backward.default, _grad, _x, _shape, _rstd, _weight, [False, True])
    add(aten._fused_rms_norm_backward.default, _grad, _x, _shape, _rstd, None, [True, False])
for _shape in ([3, 1], [1, 4]):
    _v, _norms = real(3, 4), positive(*_shape)
    add(aten._weight_norm_interface_backward.default, real(3, 4), _v, real(*_shape), _norms, _shape.index(max(_shape)))
for _operator in (aten._softmax, aten._log_softmax):
    add(_operator.default, real(3, 4), 1, False)
    add(_operator.default, real(3, 4, 2), -2, False)
    add(_operator.default, real(3, 4).float(), 1, False)
for _operator in (aten._softmax_backward_data, aten._log_softmax_backward_data):
    add(_operator.default, real(3, 4), real(3, 4), 1, torch.float64)
    add(_operator.default, real(3, 4, 2), real(3, 4, 2), -2, torch.float64)
add(aten._safe_softmax.default, real(3, 4), -1)
add(aten._safe_softmax.default, torch.tensor([[-math.inf, -math.inf], [1.0, -math.inf]], **F64), 1)
add(aten._safe_softmax.default, real(3, 4), 0, dtype=torch.float64)
add(aten._safe_softmax.default, real(), -1)
add(aten._safe_softmax.default, torch.tensor(-math.inf, **F64), 0)

# ------------------------------------------------------------------------------------------------ dropout, attention

add(aten.native_dropout.default, real(3, 4), 0.0, True)
add(aten.native_dropout.default, real(3, 4), 0.5, False)
add(aten.native_dropout.default, real(3, 4), 0.0, None)
add(aten.native_dropout.default, real(3, 4), 1.0, True)
refuse(f"VC216 dropout with p=0.5 {RANDOM}", aten.native_dropout.default, real(3, 4), 0.5, True)
add(aten.native_dropout_backward.default, real(3, 4), truth(3, 4), 1.25)

_attention = aten._scaled_dot_product_flash_attention_for_cpu.default
_attention_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
for _heads, _rows, _causal, _scale, _masked in (
    (2, 5, False, None, False), (2, 5, True, None, False), (4, 5, True, 0.3, False), (4, 3, False, 0.3, True),
    (2, 5, False, None, True), (4, 5, False, None, False),
):  # fmt: skip
    _query, _key, _value = real(2, _heads, _rows, 4), real(2, 2, 5, 4), real(2, 2, 5, 4)
    _attn_mask = real(2, 1, _rows, 5) if _masked else None
    _options = {"attn_mask": _attn_mask, "scale": _scale}
    if _heads == 2:
        add(_attention, _query, _key, _value, 0.0, _causal, **_options)
    _wide = [t.repeat_interleave(_heads // 2, 1) for t in (_key, _value)]
    _out, _lse = _attention(_query, *_wide, 0.0, _causal, **_options)
    add(_attention, _query, *_wide, 0.0, _causal, **_options)
    add(_attention_backward, real(*_out.shape), _query, *_wide, _out, _lse, 0.0, _causal, **_options)

from tests.operators import (  # noqa: E402  # add their samples
    samples_arguments,  # noqa: F401
    samples_attention,  # noqa: F401
    samples_families,  # noqa: F401
    samples_foreach,  # noqa: F401
    samples_images,  # noqa: F401
    samples_kernels,  # noqa: F401
    samples_places,  # noqa: F401
    samples_special,  # noqa: F401
)
