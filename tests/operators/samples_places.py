"""Sample calls: transforms, writes where values meet, images read at places, bags of indices."""

from __future__ import annotations

import torch

from tests.operators.samples import add, real, unit, whole

aten = torch.ops.aten


def complex_numbers(*shape: int) -> torch.Tensor:
    return torch.complex(real(*shape), real(*shape))


# ------------------------------------------------------------------------------------------------ transforms

for _normalization in (0, 1, 2):
    add(aten._fft_r2c.default, real(3, 6), [1], _normalization, True)
    add(aten._fft_r2c.default, real(3, 5), [0], _normalization, False)
    add(aten._fft_c2c.default, complex_numbers(3, 5), [1], _normalization, True)
    add(aten._fft_c2r.default, complex_numbers(3, 4), [1], _normalization, 6)
    add(aten._fft_c2r.default, complex_numbers(3, 4), [1], _normalization, 7)
add(aten._fft_r2c.default, real(3, 4, 5), [2, 0], 1, True)
add(aten._fft_r2c.default, real(3, 4, 5), [0, 2], 2, False)
add(aten._fft_c2c.default, complex_numbers(2, 3, 4), [0, 2], 1, False)
add(aten._fft_c2r.default, complex_numbers(3, 4, 3), [0, 2], 2, 4)

add(aten.sgn.default, complex_numbers(3, 4))
add(aten._to_copy.default, real(3, 4), dtype=torch.complex128)
add(aten._to_copy.default, complex_numbers(3, 4), dtype=torch.complex64)

# ------------------------------------------------------------------------------------------------ what meets

for _reduce in ("sum", "prod", "mean", "amax", "amin"):
    for _included in (True, False):
        add(aten.scatter_reduce.two, real(3, 4), 1, whole(4, 3, 6), real(3, 6), _reduce, include_self=_included)
        if _reduce != "sum":
            _source = real(2, 4)
            add(aten.index_reduce.default, real(3, 4), -2, whole(3, 2), _source, _reduce, include_self=_included)
for _reduce in ("add", "multiply"):
    add(aten.scatter.reduce, real(3, 4), 1, whole(4, 3, 6), real(3, 6), reduce=_reduce)
    add(aten.scatter.value_reduce, real(3, 4), 0, whole(3, 2, 4), 1.5, reduce=_reduce)
_index = torch.tensor([0, -1, 0])
add(aten.index_fill.int_Scalar, real(3, 4), 1, _index, 2.5)
add(aten.index_fill.int_Scalar, whole(9, 3, 4), -2, torch.tensor(1), 3)
add(aten.index_fill.int_Tensor, real(3, 4, 2), 1, _index, real())
add(aten.take.default, real(3, 4), whole(23, 2, 5) - 11)
add(aten.put.default, real(3, 4), torch.tensor([[5, -1], [0, 2]]), real(2, 2))
add(aten.put.default, real(3, 4), torch.tensor([[5, -1], [0, 5]]), real(4), True)
_mask = torch.tensor([[True, False, True], [False, False, True]])
add(aten.masked_scatter.default, real(2, 3), _mask, real(6))
add(aten.masked_scatter.default, real(2, 3, 4), _mask[..., None], real(7, 4))
add(aten.masked_scatter.default, real(2, 3, 4), _mask[..., None].expand(2, 3, 4), real(7, 4))
add(aten.masked_scatter.default, real(3), _mask, real(2, 4))
add(aten.masked_scatter_backward.default, real(2, 3), _mask, [2, 4])
add(aten.masked_scatter_backward.default, real(2, 3, 4), _mask[..., None].expand(2, 3, 4), [7, 4])
_wide = _mask[..., None]
add(aten.masked_scatter_backward.default, real(2, 3, 4), _wide, [7, 4])

# ------------------------------------------------------------------------------------------------ places in images

for _interpolation in (0, 1, 2):
    for _padding in (0, 1, 2):
        for _corners in (False, True):
            _options = (_interpolation, _padding, _corners)
            _image, _grid = real(2, 2, 3, 4), unit(2, 2, 3, 2) * 1.3
            add(aten.grid_sampler_2d.default, _image, _grid, *_options)
            add(aten.grid_sampler_2d_backward.default, real(2, 2, 2, 3), _image, _grid, *_options, [True, True])
for _options in ((0, 0, False), (1, 1, True), (0, 2, False)):
    _image, _grid = real(2, 2, 3, 2, 4), unit(2, 2, 1, 3, 3) * 1.3
    add(aten.grid_sampler_3d.default, _image, _grid, *_options)
    add(aten.grid_sampler_3d_backward.default, real(2, 2, 2, 1, 3), _image, _grid, *_options, [False, True])
_image, _grid = real(2, 2, 3, 4), unit(2, 2, 3, 2)
add(aten.grid_sampler_2d_backward.default, real(2, 2, 2, 3), _image, _grid, 0, 0, False, [False, True])
_largest, _found = aten.max_pool2d_with_indices.default(real(2, 3, 4, 6), [2, 2])
add(aten.max_unpool2d.default, _largest, _found, [4, 6])
_largest, _found = aten.max_pool3d_with_indices.default(real(2, 4, 2, 6), [2, 1, 2])
add(aten.max_unpool3d.default, _largest, _found, [4, 2, 6], [2, 1, 2], [0, 0, 0])
