"""Meanings of operations that are kernels of torch: bits, searches, distances, margin losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.ir.evaluate_families import _pair

Tensor = torch.Tensor
aten = torch.ops.aten


def _whole(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of whole numbers, in the dtype that is its attribute, if it has one."""

    def call(attributes: Sequence[Any], *operands: Tensor) -> Tensor:
        dtype = attributes[0] if attributes else torch.int64
        return function(*(t.to(dtype) for t in torch.broadcast_tensors(*operands))).double()

    return call


def _distance_slope(attributes: Sequence[Any], difference: Tensor, distance: Tensor) -> Tensor:
    difference, distance = torch.broadcast_tensors(difference, distance)
    points = difference.reshape(-1, 1, 1).contiguous()
    found = aten._cdist_backward.default(
        torch.ones_like(points),
        points,
        torch.zeros_like(points),
        attributes[0],
        distance.reshape(-1, 1, 1).contiguous(),
    )
    return found.reshape(difference.shape)


POINTWISE: dict[str, Callable[..., Tensor]] = {
    "bitwise_and": _whole(torch.bitwise_and),
    "bitwise_or": _whole(torch.bitwise_or),
    "bitwise_xor": _whole(torch.bitwise_xor),
    "bitwise_left_shift": _whole(torch.bitwise_left_shift),
    "bitwise_right_shift": _whole(torch.bitwise_right_shift),
    "direction": lambda _, x: torch.sgn(x.to(torch.complex128)),
    "gcd": _whole(torch.gcd),
    "lcm": _whole(torch.lcm),
    "isposinf": lambda _, x: torch.isposinf(x).double(),
    "isneginf": lambda _, x: torch.isneginf(x).double(),
    "distance_slope": _distance_slope,
    "renorm_factor": lambda a, x: torch.where(x > a[0], a[0] / (x + 1e-7), torch.ones_like(x)),
}


def _place_among(cores: Any) -> Tensor:
    values, boundaries = cores.alone(0), cores.alone(1, 0)
    boundaries = boundaries.expand([*cores.batch, boundaries.shape[-1]]).contiguous()
    values = values.expand(cores.batch).unsqueeze(-1).contiguous()
    return torch.searchsorted(boundaries, values, right=cores.attributes[0]).squeeze(-1).double()


def _bag_of_place(cores: Any) -> Tensor:
    place, beginnings = cores.alone(0), cores.alone(1, 0)
    beginnings = beginnings.expand([*cores.batch, beginnings.shape[-1]])
    return (beginnings <= place.expand(cores.batch).unsqueeze(-1)).sum(-1).double() - 1


def _multilabel(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return aten.multilabel_margin_loss_forward.default(x.contiguous(), target.long().contiguous(), 0)


def _rows(cores: Any, *values: Tensor) -> list[Tensor]:
    """Operands as matrices: what is batched is the first dimension."""
    return [v.expand([*cores.batch, v.shape[-1]]).reshape(-1, v.shape[-1]) for v in values]


def _multilabel_slope(cores: Any) -> Tensor:
    x, target, listed = _rows(cores, *(cores.alone(k, k) for k in range(3)))
    (gradient,) = (
        aten.multilabel_margin_loss_backward.default(
            torch.ones(x.shape[0], dtype=x.dtype), x.contiguous(), target.long().contiguous(), 0, listed.contiguous()
        ),
    )
    return gradient.reshape([*cores.batch, x.shape[-1]])


def _multilabel_targets(cores: Any) -> Tensor:
    (target,) = _rows(cores, cores.alone(0, 0))
    return _multilabel(torch.zeros(target.shape, dtype=torch.float64), target)[1].reshape([*cores.batch, *cores.fresh])


def _fourier(function: Callable[..., Tensor]) -> Callable[[Any], Tensor]:
    """A transform of the last dimension."""

    def call(cores: Any) -> Tensor:
        value = cores.alone(0, 0)
        return function(value, [value.dim() - 1], cores)

    return call


def _each(cores: Any, function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """One element of the batch after the other."""
    flat = [v.expand([*cores.batch, v.shape[-1]]).reshape(-1, v.shape[-1]) for v in operands]
    results = [function(*rows) for rows in zip(*flat, strict=True)]
    return torch.stack(results).reshape([*cores.batch, *cores.fresh])


def _masked_scatter(cores: Any) -> Tensor:
    operands = (cores.alone(0, 0), cores.alone(1, 0), cores.alone(2, 1))
    return _each(cores, lambda x, mask, source: x.masked_scatter(mask != 0, source), *operands)


def _masked_scatter_gradient(cores: Any) -> Tensor:
    def gradient(x: Tensor, mask: Tensor) -> Tensor:
        return aten.masked_scatter_backward.default(x, mask != 0, cores.fresh)

    return _each(cores, gradient, cores.alone(0, 0), cores.alone(1, 0))


def _scatter_reduced(cores: Any) -> Tensor:
    reduce, include_self = cores.attributes

    def scatter(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        return x.scatter_reduce(0, index.long(), source, reduce, include_self=include_self)

    return _each(cores, scatter, cores.alone(0, 0), cores.alone(1, 1), cores.alone(2, 1))


def _is_indexed(cores: Any) -> Tensor:
    (size,) = cores.fresh

    def mask(index: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_fill(0, index.long(), 1.0)

    return _each(cores, mask, cores.alone(0, 0))


def _grid(cores: Any, slopes: bool) -> Tensor:
    """Of every place what an image reads that is one at one pixel and zero elsewhere, or its derivative."""
    image = [int(n) for n in cores.fresh[1 if slopes else 0 :]]
    space, pixels = len(image), math.prod(image)
    places = cores.alone(0, 0).reshape([1, -1, *[1] * (space - 1), space]).contiguous()
    lights = torch.eye(pixels, dtype=torch.float64).reshape([pixels, 1, *image])
    sampler = aten.grid_sampler_2d if space == 2 else aten.grid_sampler_3d
    gradient = aten.grid_sampler_2d_backward if space == 2 else aten.grid_sampler_3d_backward
    found: list[Tensor] = []
    for light in lights:
        read = sampler.default(light[None], places, *cores.attributes)
        if slopes:
            read = gradient.default(torch.ones_like(read), light[None], places, *cores.attributes, [True, True])[1]
        found.append(read.reshape(-1, space if slopes else 1))
    stacked = torch.stack(found, -1)
    return stacked.reshape([*cores.batch, *cores.fresh])


CORES: dict[str, Callable[[Any], Tensor]] = {
    "nanmedian_value": _pair(lambda a, x, _: x.nanmedian(-1, True), 0),
    "nanmedian_index": _pair(lambda a, x, _: x.nanmedian(-1, True), 1),
    "mode_value": _pair(lambda a, x, _: x.mode(-1, True), 0),
    "mode_index": _pair(lambda a, x, _: x.mode(-1, True), 1),
    "place_among_boundaries": _place_among,
    "bag_of_place": _bag_of_place,
    "fourier_complex": _fourier(lambda x, dim, c: aten._fft_c2c.default(x.to(torch.complex128), dim, *c.attributes)),
    "fourier_of_real": _fourier(lambda x, dim, c: aten._fft_r2c.default(x, dim, *c.attributes)),
    "fourier_to_real": _fourier(
        lambda x, dim, c: aten._fft_c2r.default(x.to(torch.complex128), dim, *c.attributes, c.fresh[0])
    ),
    "masked_scatter": _masked_scatter,
    "masked_scatter_gradient": _masked_scatter_gradient,
    "scatter_reduced": _scatter_reduced,

    "is_indexed": _is_indexed,
    "grid_weights": lambda cores: _grid(cores, slopes=False),
    "grid_slopes": lambda cores: _grid(cores, slopes=True),
    "multilabel_margin": lambda cores: _multilabel(*_rows(cores, cores.alone(0, 0), cores.alone(1, 1)))[0].reshape(
        cores.batch
    ),
    "multilabel_targets": _multilabel_targets,
    "multilabel_margin_slope": _multilabel_slope,
}
