"""Sample calls: whole numbers, searches, distances, margin losses, and compositions of other operators."""

from __future__ import annotations

import math

import torch

from tests.operators.samples import F64, add, positive, real, refuse, truth, unit, whole

aten = torch.ops.aten

# ------------------------------------------------------------------------------------------------ whole numbers

for _name in ("and", "or", "xor"):
    _operator = getattr(aten, f"bitwise_{_name}")
    add(_operator.Tensor, whole(20, 3, 4) - 6, whole(20, 4))
    add(_operator.Tensor, truth(3, 4), truth(3, 4))
    add(_operator.Scalar, whole(20, 3, 4) - 6, 5)
    add(_operator.Scalar_Tensor, 5, whole(20, 3, 4))
add(aten.bitwise_not.default, whole(20, 3, 4) - 6)
for _name, _legacy in (("left", aten.__lshift__), ("right", aten.__rshift__)):
    _operator = getattr(aten, f"bitwise_{_name}_shift")
    add(_operator.Tensor, whole(2**24, 3, 4) - 99, whole(12, 4))
    add(_operator.Tensor, (whole(2**24, 3, 4) - 99).int(), whole(12, 4).int())
    add(_operator.Tensor_Scalar, whole(2**24, 3, 4), 5)
    add(_operator.Scalar_Tensor, 77, whole(5, 3, 4))
    add(_legacy.Tensor, whole(2**20, 3, 4), whole(5, 3, 4))
    add(_legacy.Scalar, whole(2**20, 3, 4), 3)
add(aten.gcd.default, whole(40, 3, 4) - 9, whole(40, 4))
add(aten.lcm.default, whole(40, 3, 4) - 9, whole(40, 4))

# ------------------------------------------------------------------------------------------------ functions of numbers

for _name in ("angle", "isposinf", "isneginf"):
    add(getattr(aten, _name).default, real(3, 4))
add(aten.copysign.Tensor, real(3, 4), real(4))
add(aten.copysign.Scalar, real(3, 4), -2.0)
add(aten.nextafter.default, real(3, 4), real(4))
add(aten.ldexp.Tensor, real(3, 4), real(4))
add(aten.round.decimals, real(3, 4) * 100, decimals=1)
add(aten.round.decimals, real(3, 4) * 100, decimals=-1)
for _name in ("deg2rad", "rad2deg"):
    add(getattr(aten, _name).default, real(3, 4))
add(aten.special_zeta.self_scalar, 2.5, positive(3, 4))
add(aten.special_zeta.other_scalar, positive(3, 4) + 1.5, 0.75)
add(aten.special_xlog1py.self_scalar, 2.5, positive(3, 4))
add(aten.special_xlog1py.other_scalar, positive(3, 4), 0.75)
for _name in (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
):  # fmt: skip
    _operator = getattr(aten, f"special_{_name}")
    if "_v" in _name or "_w" in _name or "shifted" in _name:
        add(_operator.default, unit(3, 4).abs(), whole(4, 3, 4).double())
    add(_operator.x_scalar, 0.25, whole(4, 3, 4).double())
    add(_operator.n_scalar, unit(3, 4).abs(), 3)

# ------------------------------------------------------------------------------------------------ made from numbers

add(aten.eye.default, 3, **F64)
add(aten.eye.m, 3, 5, **F64)
add(aten.linspace.default, 0.5, 2, 5, **F64)
add(aten.linspace.default, -1, 2.5, 1, **F64)
add(aten.linspace.Tensor_Tensor, real(), real(), 5, **F64)
add(aten.linspace.Tensor_Tensor, real(), real(), 1, **F64)
add(aten.tril_indices.default, 3, 4)
add(aten.tril_indices.default, 3, 4, -1)
add(aten.triu_indices.default, 3, 4, 1)

# ------------------------------------------------------------------------------------------------ products and sums

add(aten.addmv.default, real(3), real(3, 4), real(4))
add(aten.addmv.default, real(3), real(3, 4), real(4), beta=0.5, alpha=2)
add(aten.addr.default, real(3, 4), real(3), real(4))
add(aten.addr.default, real(3, 4), real(3), real(4), beta=0.5, alpha=2)
add(aten.addbmm.default, real(3, 2), real(5, 3, 4), real(5, 4, 2))
add(aten.addbmm.default, real(2), real(5, 3, 4), real(5, 4, 2), beta=0.5, alpha=2)
add(aten.addbmm.default, real(2), real(5, 3, 4), real(5, 4, 2), beta=0)
add(aten.vdot.default, real(4), real(4))
add(aten._trilinear.default, real(3, 4), real(2, 4, 5), real(3, 5), [1, 3], [0], [1, 2], [2, 3])
add(aten._trilinear.default, real(3, 4), real(3, 4), real(3, 4), [], [], [], [1])
add(aten.std_mean.correction, real(3, 4), [1], correction=0, keepdim=True)
add(aten.std_mean.correction, real(3, 4))
for _order in (1, 2, math.inf):
    add(aten.dist.default, real(3, 4), real(4), _order)
add(aten.nansum.default, real(3, 4), [1], True)
add(aten.nansum.default, real(3, 4))
add(aten.count_nonzero.default, whole(3, 3, 4))
add(aten.count_nonzero.default, truth(3, 4), 1)
add(aten.count_nonzero.dim_IntList, whole(3, 3, 4), [0, -1])
add(aten.prod.default, real(3, 4))
add(aten.prod.default, real(3, 4), **F64)
add(aten.trace.default, real(3, 4))

# ------------------------------------------------------------------------------------------------ order and places

add(aten.aminmax.default, real(3, 4))
add(aten.aminmax.default, real(3, 4), dim=-1, keepdim=True)
for _operator in (aten.median, aten.nanmedian):
    add(_operator.default, real(3, 5))
add(aten.nanmedian.dim, real(3, 5), 1)
add(aten.nanmedian.dim, real(3, 5), 0, True)
add(aten.mode.default, whole(3, 4, 5).double())
add(aten.mode.default, whole(3, 4, 5), 0, True)
for _turns in (1, 2, 3, -1, 4):
    add(aten.rot90.default, real(3, 4, 2), _turns, [0, 1])
add(aten.rot90.default, real(3, 4, 2), 1, [2, -2])
_boundaries = torch.tensor([-1.0, -0.25, 0.5, 0.5, 2.0], dtype=torch.float64)
_values = torch.tensor([[0.5, -2.0, 1.0], [3.0, -0.25, 0.0]], dtype=torch.float64)
for _right in (False, True):
    add(aten.bucketize.Tensor, _values, _boundaries, right=_right)
    add(aten.bucketize.Tensor, _values, _boundaries, out_int32=True, right=_right)
    add(aten.searchsorted.Tensor, _boundaries, _values, right=_right)
add(aten.searchsorted.Tensor, torch.stack([_boundaries, 2 * _boundaries]), _values)
add(aten.searchsorted.Tensor, _boundaries, _values, side="right")
add(aten.isin.Tensor_Tensor, whole(5, 3, 4), whole(5, 3))
add(aten.isin.Tensor_Tensor, whole(5, 3, 4), whole(5, 2, 2), invert=True)
add(aten.isin.Tensor_Scalar, whole(5, 3, 4), 2)
add(aten.isin.Tensor_Scalar, whole(5, 3, 4), 2, invert=True)
refuse(
    "VC202 a search in boundaries that another tensor orders",
    aten.searchsorted.Tensor, _boundaries, _values, sorter=torch.arange(5),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ diagonals and parts

add(aten.diagonal_scatter.default, real(3, 4), real(3))
add(aten.diagonal_scatter.default, real(3, 4, 2), real(2, 3), -1, 1, 0)
add(aten.diagonal_scatter.default, real(2, 3, 3), real(2, 2), 1, -2, -1)
add(aten.block_diag.default, [real(2, 3), real(2), real(), real(1, 2)])
add(aten.narrow_copy.default, real(3, 6), 1, 2, 3)
add(aten.narrow_copy.default, real(3, 6), -1, -3, 2)

# ------------------------------------------------------------------------------------------------ distances

for _order in (0.0, 1.0, 2.0, 3.0, 1.5, math.inf):
    _left, _right = real(2, 4, 3), real(2, 5, 3)
    add(aten._cdist_forward.default, _left, _right, _order, None)
    add(aten._pdist_forward.default, real(4, 3), _order)
    if _order == math.inf:
        continue
    _points = real(4, 3)
    add(aten._cdist_backward.default, real(2, 4, 5), _left, _right, _order, torch.cdist(_left, _right, _order))
    add(aten._pdist_backward.default, real(6), _points, _order, torch.pdist(_points, _order))
    if _order:
        add(aten.renorm.default, real(3, 4, 2), _order, 1, 0.8)
refuse(
    "VC202 the gradient of a distance with p=inf",
    aten._cdist_backward.default, real(2, 4, 5), _left, _right, math.inf, torch.cdist(_left, _right, math.inf),
)  # fmt: skip
add(aten.renorm.default, real(3, 4), 2, -1, 5.0)
add(aten.linalg_cross.default, real(2, 3), real(2, 3))
add(aten.linalg_cross.default, real(3, 2, 4), real(3, 1, 4), dim=0)

# ------------------------------------------------------------------------------------------------ losses

_pixels, _classes = real(2, 3, 2, 4), whole(3, 2, 2, 4)
_classes[0, 0, 0] = 1
for _reduction in (0, 1, 2):
    for _weight in (None, positive(3)):
        for _ignored in (-100, 1):
            _loss, _total = aten.nll_loss2d_forward.default(_pixels, _classes, _weight, _reduction, _ignored)
            add(aten.nll_loss2d_forward.default, _pixels, _classes, _weight, _reduction, _ignored)
            add(
                aten.nll_loss2d_backward.default,
                real(*_loss.shape), _pixels, _classes, _weight, _reduction, _ignored, _total,
            )  # fmt: skip
    for _power, _margin, _weight in ((1, 1, None), (2, 0.5, positive(4))):
        for _rows in ((), (3,)):
            _scores, _target = real(*_rows, 4), whole(4, *_rows)
            _options = (_target, _power, _margin, _weight, _reduction)
            add(aten.multi_margin_loss.default, _scores, *_options)
            _gradient = real(*aten.multi_margin_loss.default(_scores, *_options).shape)
            add(aten.multi_margin_loss_backward.default, _gradient, _scores, *_options)
    for _scores, _target in (
        (real(2, 4), torch.tensor([[3, 0, -1, 1], [-1, 0, 2, 1]])), (real(4), torch.tensor([1, 2, -1, 0])),
    ):  # fmt: skip
        _loss, _listed = aten.multilabel_margin_loss_forward.default(_scores, _target, _reduction)
        add(aten.multilabel_margin_loss_forward.default, _scores, _target, _reduction)
        add(aten.multilabel_margin_loss_backward.default, real(*_loss.shape), _scores, _target, _reduction, _listed)
