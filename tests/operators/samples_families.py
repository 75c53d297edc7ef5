"""More sample calls: activations, losses, ordering, statistics, arithmetic, scatter and advanced indexing."""

from __future__ import annotations

import math

import torch

from tests.operators.samples import MEAN, NONE, SUM, add, positive, real, refuse, truth, unit, whole

aten = torch.ops.aten

# ------------------------------------------------------------------------------------------------ activations

add(aten.sgn.default, real(3, 4))
for _slope in (0.01, -0.5, 0):
    add(aten.leaky_relu.default, real(3, 4), _slope)
    add(aten.leaky_relu_backward.default, real(3, 4), real(3, 4), _slope, False)
add(aten._prelu_kernel.default, real(3, 4), real(1, 4))
add(aten._prelu_kernel.default, real(3, 4), real(1, 1))
add(aten._prelu_kernel_backward.default, real(3, 4), real(3, 4), real(1, 4))
add(aten.hardtanh.default, real(3, 4))
add(aten.hardtanh.default, real(3, 4), 0.0, 6.0)
add(aten.hardtanh_backward.default, real(3, 4), real(3, 4), -0.5, 1.0)
for _function in (aten.hardsigmoid, aten.hardswish, aten.mish):
    add(_function.default, real(3, 4) * 3)
for _function in (aten.hardsigmoid_backward, aten.hardswish_backward, aten.mish_backward):
    add(_function.default, real(3, 4), real(3, 4) * 3)
add(aten.elu.default, real(3, 4))
add(aten.elu.default, real(3, 4), 1.5, 0.7, 2.0)
add(aten.elu_backward.default, real(3, 4), 1.5, 0.7, 2.0, False, real(3, 4))
add(aten.elu_backward.default, real(3, 4), 1.5, 0.7, 2.0, True, unit(3, 4))
add(aten.celu.default, real(3, 4), 0.7)
add(aten.log_sigmoid_forward.default, real(3, 4))
_x = real(3, 4)
add(aten.log_sigmoid_backward.default, real(3, 4), _x, aten.log_sigmoid_forward.default(_x)[1])
add(aten.glu.default, real(3, 4))
add(aten.glu.default, real(4, 3), 0)
add(aten.glu_backward.default, real(3, 2), real(3, 4), -1)
add(aten.glu_backward.default, real(2, 3), real(4, 3), 0)
# ------------------------------------------------------------------------------------------------ losses

for _reduction in (NONE, MEAN, SUM):
    _grad = real(3, 4) if _reduction == NONE else real()
    add(aten.smooth_l1_loss.default, real(3, 4), real(3, 4), _reduction, 0.8)
    # A fraction would divide by zero in the whole numbers that the dtype test tries.
    add(aten.smooth_l1_loss_backward.default, _grad, real(3, 4), real(3, 4), _reduction, 1.0)
    add(aten.huber_loss.default, real(3, 4), real(3, 4), _reduction, 0.8)
    add(aten.huber_loss_backward.default, _grad, real(3, 4), real(3, 4), _reduction, 0.8)
    add(aten.soft_margin_loss.default, real(3, 4), real(3, 4).sign(), _reduction)
    add(aten.soft_margin_loss_backward.default, _grad, real(3, 4), real(3, 4).sign(), _reduction)
    for _weight in (None, positive(3, 4), positive(4)):
        _p, _t = unit(3, 4).abs(), unit(3, 4).abs()
        add(aten.binary_cross_entropy.default, _p, _t, _weight, _reduction)
        add(aten.binary_cross_entropy_backward.default, _grad, _p, _t, _weight, _reduction)
        for _pos in (None, positive(4)):
            add(aten.binary_cross_entropy_with_logits.default, real(3, 4), _t, _weight, _pos, _reduction)
add(aten.xlogy.Tensor, whole(3, 3, 4).double(), positive(3, 4))
add(aten.xlogy.Tensor, real(3, 4), positive(3, 4).exp())
add(aten.xlogy.Scalar_Self, 0.5, positive(3, 4))
add(aten.xlogy.Scalar_Other, real(3, 4), 2.5)
add(aten.special_entr.default, positive(3, 4))
add(aten.special_entr.default, whole(3, 3, 4).double().abs())

# ------------------------------------------------------------------------------------------------ ordering

for _operator in (aten.cumsum, aten.cumprod):
    add(_operator.default, real(3, 4), 1)
    add(_operator.default, real(3, 4), 0, dtype=torch.float64)
    add(_operator.default, whole(5, 3, 4), -1)
    add(_operator.default, truth(3, 4), -1)
    add(_operator.default, real(3, 4) * 3, -1, dtype=torch.int64)
    add(_operator.default, real(), 0)
add(aten.logcumsumexp.default, real(3, 4), 1)
add(aten.prod.dim_int, real(3, 4), 1)
add(aten.prod.dim_int, real(3, 4), 0, True)
add(aten.prod.dim_int, whole(5, 3, 4), -1, dtype=torch.float64)
add(aten.flip.default, real(3, 4), [0])
add(aten.flip.default, real(2, 3, 4), [-1, 0])
add(aten.flip.default, real(3, 4), [])
add(aten.roll.default, real(3, 4), [1], [1])
add(aten.roll.default, real(2, 3, 4), [-1, 2], [0, -1])
add(aten.roll.default, real(3, 4), [2])
for _largest in (True, False):
    add(aten.topk.default, real(3, 5), 2, -1, _largest, True)
    add(aten.topk.default, real(5, 3), 3, 0, _largest, True)
add(aten.sort.default, real(3, 5))
add(aten.sort.default, real(3, 5), 0, True)
add(aten.sort.stable, whole(3, 3, 5), stable=True, dim=-1, descending=True)
add(aten.kthvalue.default, real(3, 5), 2)
add(aten.kthvalue.default, real(3, 5), 2, 0, True)
add(aten.median.dim, real(3, 5), 1)
add(aten.median.dim, real(3, 5), 0, True)
for _operator in (aten.max, aten.min):
    add(_operator.dim, real(3, 4), 1)
    add(_operator.dim, real(3, 4), 0, True)
for _operator in (aten.argmax, aten.argmin):
    add(_operator.default, real(3, 4))
    add(_operator.default, real(3, 4), None, True)
    add(_operator.default, real(3, 4), 1)
    add(_operator.default, real(3, 4), 0, True)

# ------------------------------------------------------------------------------------------------ statistics

for _operator in (aten.var, aten.std):
    add(_operator.correction, real(3, 4), [1])
    add(_operator.correction, real(3, 4), [-1], correction=0, keepdim=True)
    add(_operator.correction, real(3, 4), None, correction=1.5)
    add(_operator.dim, real(3, 4), [0, 1], False)
    add(_operator.dim, real(3, 4), [1], True, True)
    add(_operator.default, real(3, 4))
    add(_operator.default, real(3, 4), False)
add(aten.var_mean.correction, real(3, 4), [1], correction=0, keepdim=True)
refuse("VC206 the variance of 1 elements with correction=1", aten.var.default, real(1))
for _order in (1, 2, math.inf):
    add(aten.linalg_vector_norm.default, real(3, 4), _order)
    add(aten.linalg_vector_norm.default, real(3, 4), _order, [-1], True)
    add(aten.norm.ScalarOpt_dim, real(3, 4), _order, [1], True)
    add(aten.norm.Scalar, real(3, 4), _order)
add(aten.norm.ScalarOpt_dim, real(3, 4), None, [0])
for _order in (3, 0.5, 4.0):
    add(aten.linalg_vector_norm.default, real(3, 4), _order)
for _order in (0, -1, -2.5, -math.inf):
    add(aten.linalg_vector_norm.default, real(3, 4), _order)
    add(aten.linalg_vector_norm.default, real(3, 4), _order, [-1], True)
add(aten.logsumexp.default, real(3, 4), [1])
add(aten.logsumexp.default, real(3, 4), [0, -1], True)

# ------------------------------------------------------------------------------------------------ arithmetic

add(aten.clamp.Tensor, real(3, 4), real(4), real(3, 1))
add(aten.clamp.Tensor, real(3, 4), None, real(3, 1))
add(aten.clamp_min.Tensor, real(3, 4), real(4))
add(aten.clamp_max.Tensor, real(3, 4), real())
add(aten.nan_to_num.default, real(3, 4), 0.0)
for _rounding in (None, "floor", "trunc"):
    add(aten.div.Tensor_mode, real(3, 4) * 5, positive(4), rounding_mode=_rounding)
    add(aten.div.Scalar_mode, real(3, 4) * 5, -1.5, rounding_mode=_rounding)
for _rounding in ("floor", "trunc"):
    add(aten.div.Tensor_mode, whole(9, 3, 4) - 4, whole(3, 4) + 1, rounding_mode=_rounding)
add(aten.floor_divide.default, whole(9, 3, 4) - 4, whole(3, 4) + 1)
add(aten.floor_divide.Scalar, whole(9, 3, 4) - 4, 3)
for _operator in (aten.remainder, aten.fmod):
    add(_operator.Tensor, whole(9, 3, 4) - 4, whole(3, 4) + 1)
    add(_operator.Scalar, whole(9, 3, 4) - 4, 3)
    add(_operator.Scalar, real(3, 4) * 5, 1.5)
add(aten.pow.Scalar, 2.5, real(3, 4))
add(aten.pow.Tensor_Tensor, positive(3, 4), real(4))
add(aten.logaddexp.default, real(3, 4), real(4))
add(aten.atan2.default, real(3, 4), real(3, 4))
for _operator in (aten.any, aten.all):
    add(_operator.default, truth(3, 4))
    add(_operator.default, whole(3, 2))
    add(_operator.dim, truth(3, 4), 1)
    add(_operator.dim, truth(3, 4), -2, True)
    add(_operator.dims, truth(2, 3, 4), [0, -1], True)
add(aten.logical_xor.default, truth(3, 4), truth(4))
for _operator in (aten.isnan, aten.isinf, aten.isfinite, aten.signbit):
    if hasattr(_operator, "default"):
        add(_operator.default, real(3, 4))

# ------------------------------------------------------------------------------------------------ scatter and indexing

add(aten.scatter_add.default, real(3, 4), 1, whole(4, 3, 6), real(3, 6))
add(aten.scatter_add.default, real(5, 4), 0, whole(5, 2, 4), real(3, 4))
add(aten.scatter.src, real(3, 4), 1, torch.tensor([[0, 2], [3, 1], [1, 0]]), real(3, 2))
add(aten.scatter.src, real(4, 3), -2, torch.tensor([[0, 2, 1], [3, 1, 0]]), real(2, 3))
add(aten.scatter.value, real(3, 4), 1, whole(4, 3, 2), 2.5)
add(aten.scatter.value, whole(3, 3, 4), -1, whole(4, 3, 2), 0)
add(aten.scatter.value, truth(3, 4), -1, whole(4, 3, 2), False)
add(aten.scatter.value, truth(3, 4), 1, whole(4, 3, 2), True)
add(aten.scatter.value, truth(3, 4), 1, whole(4, 3, 2), 0.5)
add(aten.scatter.value, real(3, 4), 1, whole(4, 2, 2), 1.0)
add(aten.scatter.src, real(3, 4, 5), 1, torch.tensor([2, 0, 3]).view(1, 3, 1).expand(2, 3, 2), real(2, 3, 4))
add(aten.scatter_add.default, real(3, 4, 5), -1, whole(5, 2, 3, 2), real(3, 4, 2))
for _keep in (False, True):
    add(aten.amin.default, real(), [0], _keep)
    add(aten.mean.dim, real(), [-1], _keep)
    add(aten.any.dim, truth(), 0, _keep)
    add(aten.sum.dim_IntList, real(), [0], _keep)
    add(aten.linalg_vector_norm.default, real(), 3, [0], _keep)
add(aten.scatter_add.default, real(), 0, torch.tensor(0), real())
add(aten.scatter.src, real(), 0, torch.tensor(0), real())
add(aten.scatter.value, real(), 0, torch.tensor(0), 2.0)
for _index in (torch.tensor(0), torch.tensor([0])):
    add(aten.gather.default, real(), 0, _index)
    add(aten.index_select.default, real(), 0, _index)
    add(aten.index_add.default, real(), 0, _index, real(), alpha=2)
    add(aten.index_copy.default, real(), 0, _index, real())
    add(aten.index_fill.int_Scalar, real(), 0, _index, 2.0)
add(aten.gather.default, real(3), 0, torch.tensor(2))
add(aten.scatter_add.default, real(3), 0, torch.zeros(0, dtype=torch.int64), real(0))
add(aten.zero.default, real(3, 4))
add(aten.arange.start_step, 0.5, 2.0, 0.25)
add(aten.histc.default, real(), 4, -2, 2)
add(aten.index_add.default, real(3, 4), -2, whole(3, 2), real(2, 4), alpha=2)
add(aten.index_copy.default, real(3, 4), 1, torch.tensor([2, 0]), real(3, 2))
add(aten.index_copy.default, real(3, 4), -2, torch.tensor([2, 0]), real(2, 4))
add(aten.index_copy.default, real(3), 0, torch.tensor(1), real())
add(aten.slice_scatter.default, real(3, 6), real(3, 2), 1, 2, 4)
add(aten.slice_scatter.default, real(3, 6), real(3, 6), 1)
add(aten.slice_scatter.default, real(6, 3), real(2, 3), 0, -2)
add(aten.select_scatter.default, real(3, 4), real(3), 1, 2)
add(aten.select_scatter.default, real(3, 4), real(4), 0, -1)
add(aten.copy.default, real(3, 4), real(4))
add(aten.copy.default, whole(4, 3, 4), real(3, 4) * 3)
add(aten.fill.Scalar, real(3, 4), 2.5)
add(aten.fill.Tensor, real(3, 4), real())
_index = torch.tensor([0, -1, 2, 1, -3])
add(aten.index.Tensor, real(3, 4), [_index])
add(aten.index.Tensor, real(2, 3, 4), [None, _index])
add(aten.index.Tensor, real(2, 3, 4), [None, whole(3, 2, 5), whole(4, 5)])
add(aten.index.Tensor, real(3, 4, 3), [_index, None, _index])
add(aten.index.Tensor, real(3, 4), [whole(3, 2, 1), whole(4, 6)])
refuse(
    "VC202 a mask as an index: the size of the result depends on data",
    aten.index.Tensor,
    real(3, 4),
    [torch.tensor([True, False, True])],
)
add(aten.index_put.default, real(3, 4), [_index], real(5, 4), True)
add(aten.index_put.default, real(3, 4), [_index], real(4), True)
add(aten.index_put.default, real(2, 3, 4), [None, _index], real(2, 5, 4), True)
add(aten.index_put.default, real(3, 4, 3), [_index, None, _index], real(5, 4), True)
add(aten.slice_backward.default, real(3, 3), [3, 6], 1, 0, 6, 2)
add(aten.slice_backward.default, real(3, 2), [3, 5], 1, 1, 5, 2)
