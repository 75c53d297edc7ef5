"""Meanings of operations that are kernels of torch: bits, searches, distances, margin losses."""

from __future__ import annotations

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


def _is_among(cores: Any) -> Tensor:
    return (cores.alone(0).unsqueeze(-1) == cores.alone(1, 0)).any(-1).double()


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


CORES: dict[str, Callable[[Any], Tensor]] = {
    "nanmedian_value": _pair(lambda a, x, _: x.nanmedian(-1, True), 0),
    "nanmedian_index": _pair(lambda a, x, _: x.nanmedian(-1, True), 1),
    "mode_value": _pair(lambda a, x, _: x.mode(-1, True), 0),
    "mode_index": _pair(lambda a, x, _: x.mode(-1, True), 1),
    "place_among_boundaries": _place_among,
    "is_among": _is_among,
    "cross_product": lambda cores: torch.linalg.cross(
        *(t.expand([*cores.batch, 3]) for t in (cores.alone(0, 0), cores.alone(1, 1)))
    ),
    "multilabel_margin": lambda cores: _multilabel(*_rows(cores, cores.alone(0, 0), cores.alone(1, 1)))[0].reshape(
        cores.batch
    ),
    "multilabel_targets": _multilabel_targets,
    "multilabel_margin_slope": _multilabel_slope,
}
