"""Sample calls that give single arguments another value, where the other files have one: see test_every_argument.py."""

from __future__ import annotations

import torch

from tests.operators.samples import add, positive, real

aten = torch.ops.aten

# ------------------------------------------------------------------------------------------------ dtypes, dimensions

add(aten._foreach_norm.Scalar, [real(3, 4), real(2)], 2, torch.float64)
add(aten.linalg_vector_norm.default, real(3, 4), 2, [1], False, dtype=torch.float64)
add(aten.linalg_vector_norm.default, real(3, 4).float(), 2, None, True, dtype=torch.float64)
for _operator in (aten._softmax_backward_data, aten._log_softmax_backward_data):
    add(_operator.default, real(3, 4).float(), real(3, 4).float(), 1, torch.float32)
for _operator in (aten.split_with_sizes_copy, aten.unsafe_split_with_sizes):
    add(_operator.default, real(4, 6), [1, 3, 2], 1)
    add(_operator.default, real(3, 3), [1, 2], 0)
for _dim in (0, 1):
    add(aten.slice_scatter.default, real(4, 4), real(4, 2) if _dim else real(2, 4), _dim, 1, 3)
add(aten.slice_scatter.default, real(4, 4), real(4, 2), 1, 0, 4, 2)
for _dim in (0, 1):
    add(aten.select_scatter.default, real(3, 3), real(3), _dim, 1)
    add(aten.select_backward.default, real(3), [3, 3], _dim, 1)
    add(aten.glu.default, real(4, 4), _dim)
    add(aten.index_add.default, real(3, 3), _dim, torch.tensor([0, 2, 2]), real(3, 3))
    add(aten.index_copy.default, real(3, 3), _dim, torch.tensor([2, 0, 1]), real(3, 3))
    add(aten.scatter.src, real(3, 3), _dim, torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]), real(3, 3))
    add(aten.scatter.value, real(3, 3), _dim, torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]), 1.5)
add(aten._unsafe_index.Tensor, real(3, 4), [torch.tensor([0, 2, 2])])
add(aten._unsafe_index_put.default, real(3, 3), [None, torch.tensor([0, 2])], real(3, 2), False)
add(aten.clamp.Tensor, real(3, 4), real(4), None)

# ------------------------------------------------------------------------------------------------ matrices

_m = real(2, 3, 3)
_definite = _m @ _m.mT + 3 * torch.eye(3, dtype=torch.float64)
_general = _definite + 0.5 * real(2, 3, 3)
_lu, _pivots, _ = aten.linalg_lu_factor_ex.default(_general)
for _left, _adjoint in ((True, True), (False, False), (False, True)):
    add(aten.linalg_lu_solve.default, _lu, _pivots, real(2, 3, 3), left=_left, adjoint=_adjoint)
add(aten.linalg_solve_triangular.default, _definite, real(2, 3, 3), upper=True, left=False)

# ------------------------------------------------------------------------------------------------ normalization

_x = real(3, 6, 2)
add(aten.native_group_norm.default, _x, real(6), real(6), 3, 6, 2, 3, 1e-5)
_, _mean, _rstd = aten.native_group_norm.default(_x, None, None, 3, 6, 2, 3, 1e-5)
add(aten.native_group_norm_backward.default, real(*_x.shape), _x, _mean, _rstd, real(6), 3, 6, 2, 3, [True] * 3)
add(aten._native_batch_norm_legit_functional.default, _x, None, None, real(6), positive(6), True, 0.1, 1e-5)
add(
    aten.native_batch_norm_backward.default,
    real(3, 4), real(3, 4), real(4), real(4), positive(4), None, None, False, 1e-5, [True] * 3,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ windows

_x = real(1, 2, 5, 4, 4)
for _pool in (([2, 2, 2], [2, 2, 2], [0, 0, 0], True, True, 3), ([2, 2, 2], [2, 2, 2], [1, 1, 1], False, True, None)):
    _y = aten.avg_pool3d.default(_x, *_pool)
    add(aten.avg_pool3d.default, _x, *_pool)
    add(aten.avg_pool3d_backward.default, real(*_y.shape), _x, *_pool)
for _pool in (
    ([3, 2, 2], [2, 2, 2], [1, 1, 1], [1, 1, 1], True), ([2, 2, 2], [1, 1, 1], [0, 0, 0], [2, 1, 2], False),
):  # fmt: skip
    _y, _places = aten.max_pool3d_with_indices.default(_x, *_pool)
    add(aten.max_pool3d_with_indices.default, _x, *_pool)
    add(aten.max_pool3d_with_indices_backward.default, real(*_y.shape), _x, *_pool, _places)
for _name in ("reflection_pad", "replication_pad"):
    for _space, _padding in ((2, [0, 2, 1, 1]), (3, [0, 1, 1, 0, 1, 1])):
        _x = real(*((2, 3, 4, 3) if _space == 2 else (1, 2, 3, 3, 2)))
        _y = getattr(aten, f"{_name}{_space}d").default(_x, _padding)
        add(getattr(aten, f"{_name}{_space}d_backward").default, real(*_y.shape), _x, _padding)

# ------------------------------------------------------------------------------------------------ interpolation

for _name, _space, _aligned in (
    ("upsample_nearest", 1, None), ("upsample_nearest", 2, None), ("upsample_nearest", 3, None),
    ("_upsample_nearest_exact", 1, None), ("_upsample_nearest_exact", 2, None), ("_upsample_nearest_exact", 3, None),
    ("upsample_linear", 1, False), ("upsample_bilinear", 2, False), ("upsample_trilinear", 3, False),
    ("upsample_bicubic", 2, False),
):  # fmt: skip
    _shape = [2, 2, 3, 4, 2][: 2 + _space]
    _options = ([] if _aligned is None else [_aligned], [None] * _space)
    for _size in ([5, 6, 3][:_space], [2, 3, 4][:_space]):
        _call = (real(2, 2, *_size), _size, _shape, *_options[0], *_options[1])
        add(getattr(aten, f"{_name}{_space}d_backward").default, *_call)
for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    add(getattr(aten, f"{_name}_backward").default, real(2, 2, 5, 6), [5, 6], [2, 2, 3, 4], False, None, None)
