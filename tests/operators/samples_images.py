"""Sample calls on images: convolution, windows, pooling, normalization, interpolation, padding."""

from __future__ import annotations

import torch

from tests.operators.samples import add, positive, real

aten = torch.ops.aten

# ------------------------------------------------------------------------------------------------ convolution

for _shape, _kernel, _options in (
    ((2, 3, 6), (4, 3, 3), ([1], [1], [1], False, [0], 1)),
    ((2, 4, 7), (6, 2, 3), ([2], [0], [1], False, [0], 2)),
    ((2, 3, 5, 6), (2, 3, 3, 2), ([1, 2], [1, 0], [2, 1], False, [0, 0], 1)),
    ((2, 2, 4, 4), (2, 1, 2, 2), ([2, 2], [0, 0], [1, 1], False, [0, 0], 2)),
    ((1, 2, 3, 4, 3), (2, 2, 2, 3, 1), ([1, 1, 2], [0, 1, 0], [1, 1, 1], False, [0, 0, 0], 1)),
    ((2, 3, 4), (3, 2, 3), ([2], [1], [1], True, [1], 1)),
    ((2, 4, 4), (4, 3, 3), ([2], [1], [2], True, [0], 2)),
    ((2, 2, 3, 2), (2, 3, 2, 3), ([2, 1], [0, 1], [1, 1], True, [1, 0], 1)),
):
    _x, _w = real(*_shape), real(*_kernel)
    _y = aten.convolution.default(_x, _w, None, *_options)
    add(aten.convolution.default, _x, _w, real(_y.shape[1]), *_options)
    add(aten.convolution_backward.default, real(*_y.shape), _x, _w, [_y.shape[1]], *_options, [True, True, True])
add(aten.convolution.default, _x, _w, None, *_options)
for _wanted in ([False, True, False], [True, False, False]):
    add(aten.convolution_backward.default, real(*_y.shape), _x, _w, None, *_options, _wanted)
for _windows in (([2, 2], [1, 1], [0, 0], [1, 1]), ([3, 2], [1, 2], [1, 0], [2, 1]), ([2, 2], [1, 1], [0, 0], [2, 2])):
    _columns = aten.im2col.default(real(2, 3, 6, 4), *_windows)
    add(aten.im2col.default, real(2, 3, 6, 4), *_windows)
    add(aten.col2im.default, real(*_columns.shape), [6, 4], *_windows)
add(aten.unfold.default, real(2, 7, 3), 1, 3, 2)
add(aten.unfold.default, real(7), -1, 2, 2)
add(aten.unfold_backward.default, real(2, 3, 3, 3), [2, 7, 3], 1, 3, 2)
add(aten.unfold_backward.default, real(3, 2), [7], -1, 2, 2)

# ------------------------------------------------------------------------------------------------ pooling

for _pool in (
    ([2, 2], [], [0, 0], [1, 1], False), ([3, 2], [2, 1], [1, 0], [1, 2], True), ([2], [2], [1], [1], True),
):  # fmt: skip
    _x = real(2, 3, 5, 6)
    _y, _places = aten.max_pool2d_with_indices.default(_x, *_pool)
    add(aten.max_pool2d_with_indices.default, _x, *_pool)
    add(aten.max_pool2d_with_indices_backward.default, real(*_y.shape), _x, *_pool, _places)
_x = real(1, 2, 4, 3, 4)
_pool = ([2, 2, 2], [2, 1, 1], [0, 0, 1], [1, 1, 1], False)
_y, _places = aten.max_pool3d_with_indices.default(_x, *_pool)
add(aten.max_pool3d_with_indices.default, _x, *_pool)
add(aten.max_pool3d_with_indices_backward.default, real(*_y.shape), _x, *_pool, _places)
_x = real(2, 3, 5, 4)
_y, _places = aten.adaptive_max_pool2d.default(_x, [2, 3])
add(aten.adaptive_max_pool2d.default, _x, [2, 3])
add(aten.adaptive_max_pool2d_backward.default, real(*_y.shape), _x, _places)
_x = real(1, 2, 4, 3, 4)
_y, _places = aten.adaptive_max_pool3d.default(_x, [2, 3, 2])
add(aten.adaptive_max_pool3d.default, _x, [2, 3, 2])
add(aten.adaptive_max_pool3d_backward.default, real(*_y.shape), _x, _places)
for _pool in (
    ([2, 2], [], [0, 0], False, True, None), ([3, 2], [2, 1], [1, 0], True, False, None),
    ([3, 3], [2, 2], [1, 1], True, True, None), ([2], [2], [1], True, True, 3),
):  # fmt: skip
    _x = real(2, 3, 5, 6)
    add(aten.avg_pool2d.default, _x, *_pool)
    add(aten.avg_pool2d_backward.default, real(*aten.avg_pool2d.default(_x, *_pool).shape), _x, *_pool)
for _divisor in (None, 3):  # windows side by side
    _pool = ([3, 2], [], [0, 0], False, True, _divisor)
    add(aten.avg_pool2d.default, real(2, 3, 6, 4), *_pool)
    add(aten.avg_pool2d_backward.default, real(2, 3, 2, 2), real(2, 3, 6, 4), *_pool)
_x, _pool = real(1, 2, 4, 3, 4), ([2, 3, 2], [1, 2, 2], [0, 1, 1], True, False, None)
add(aten.avg_pool3d.default, _x, *_pool)
add(aten.avg_pool3d_backward.default, real(*aten.avg_pool3d.default(_x, *_pool).shape), _x, *_pool)
add(aten._adaptive_avg_pool2d.default, real(2, 3, 5, 6), [2, 3])
add(aten._adaptive_avg_pool2d_backward.default, real(2, 3, 2, 3), real(2, 3, 5, 6))
add(aten._adaptive_avg_pool3d.default, real(1, 2, 4, 3, 4), [2, 2, 3])
add(aten._adaptive_avg_pool3d_backward.default, real(1, 2, 2, 2, 3), real(1, 2, 4, 3, 4))

# ------------------------------------------------------------------------------------------------ normalization

_x = real(2, 4, 3, 2)
add(aten.native_group_norm.default, _x, real(4), real(4), 2, 4, 6, 2, 1e-5)
add(aten.native_group_norm.default, _x, None, None, 2, 4, 6, 4, 0.1)
_, _mean, _rstd = aten.native_group_norm.default(_x, None, None, 2, 4, 6, 2, 1e-5)
for _weight, _wanted in ((real(4), [True, True, True]), (None, [True, False, False]), (real(4), [False, False, True])):
    add(aten.native_group_norm_backward.default, real(*_x.shape), _x, _mean, _rstd, _weight, 2, 4, 6, 2, _wanted)
_running = (real(4), positive(4))
add(aten._native_batch_norm_legit_no_training.default, _x, real(4), real(4), *_running, 0.1, 1e-5)
add(aten._native_batch_norm_legit_no_training.default, real(3, 4), None, None, *_running, 0.1, 0.1)
add(aten._native_batch_norm_legit.no_stats, _x, real(4), real(4), True, 0.1, 1e-5)
add(aten._native_batch_norm_legit.no_stats, real(3, 4), None, None, True, 0.0, 0.1)
for _training in (True, False):
    add(aten._native_batch_norm_legit_functional.default, _x, real(4), real(4), *_running, _training, 0.1, 1e-5)
    add(
        aten.native_batch_norm_backward.default,
        real(*_x.shape), _x, real(4), *_running, real(4), positive(4), _training, 1e-5, [True, True, True],
    )  # fmt: skip
add(
    aten.native_batch_norm_backward.default,
    real(3, 4), real(3, 4), None, None, None, real(4), positive(4), True, 1e-5, [True, False, False],
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ interpolation

for _name in ("upsample_nearest", "_upsample_nearest_exact"):  # each element repeated
    for _scales in ([None, None], [4.0, 4.0], [4.0, 3.9]):
        add(getattr(aten, f"{_name}2d").default, real(2, 2, 3, 2), [12, 8], *_scales)
        add(getattr(aten, f"{_name}2d_backward").default, real(2, 2, 12, 8), [12, 8], [2, 2, 3, 2], *_scales)
_LINES = {1: ((2, 3, 4), [7]), 2: ((2, 2, 4, 3), [6, 5]), 3: ((1, 2, 3, 2, 4), [5, 4, 6])}
for _space, (_shape, _size) in _LINES.items():
    for _name in ("upsample_nearest", "_upsample_nearest_exact"):
        for _scales in ([None] * _space, [1.6] * _space)[: 2 if _space == 2 else 1]:
            add(getattr(aten, f"{_name}{_space}d").default, real(*_shape), _size, *_scales)
            _y = real(*_shape[:2], *_size)
            add(getattr(aten, f"{_name}{_space}d_backward").default, _y, _size, list(_shape), *_scales)
for _name, _space in (
    ("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3), ("upsample_bicubic2d", 2),
    ("_upsample_bilinear2d_aa", 2), ("_upsample_bicubic2d_aa", 2),
):  # fmt: skip
    _shape, _size = _LINES[_space]
    for _aligned, _scales in ((True, [None] * _space), (False, [None] * _space), (False, [1.7] * _space)):
        add(getattr(aten, _name).default, real(*_shape), _size, _aligned, *_scales)
        add(
            getattr(aten, f"{_name}_backward").default,
            real(*_shape[:2], *_size),
            _size,
            list(_shape),
            _aligned,
            *_scales,
        )

# ------------------------------------------------------------------------------------------------ padding, shuffles

for _name in ("reflection_pad", "replication_pad"):
    for _space, _padding in ((1, [1, 2]), (2, [2, 1, 0, 1]), (3, [1, 0, 1, 1, 0, 1])):
        _x = real(*((2, 3, 4, 3) if _space == 2 else (2, 3, 4) if _space == 1 else (1, 2, 3, 3, 2)))
        _y = getattr(aten, f"{_name}{_space}d").default(_x, _padding)
        add(getattr(aten, f"{_name}{_space}d").default, _x, _padding)
        add(getattr(aten, f"{_name}{_space}d_backward").default, real(*_y.shape), _x, _padding)
add(aten.pixel_shuffle.default, real(2, 8, 2, 3), 2)
add(aten.pixel_unshuffle.default, real(2, 2, 4, 6), 2)
add(aten.channel_shuffle.default, real(2, 6, 2, 3), 3)
add(aten.native_channel_shuffle.default, real(2, 6, 2, 3), 2)
add(aten._unsafe_index.Tensor, real(2, 3, 4), [None, torch.tensor([0, 2, 2]), torch.tensor([3, 0, 1])])
add(aten._unsafe_index_put.default, real(3, 4), [torch.tensor([0, 2, 2])], real(3, 4), True)
