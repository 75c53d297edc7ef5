"""Meanings of the operations on images: constant matrices by torch's operators in one dimension, and maxima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
aten = torch.ops.aten


def _window(attributes: Any, sizes: list[int]) -> Tensor:
    stride, padding, dilation = attributes
    o, k, x = (torch.arange(size) for size in sizes)
    return (o[:, None, None] * stride - padding + k[:, None] * dilation == x).double()


def _plane(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An operator in two dimensions, in the last one alone."""
    return lambda lines: function(lines.unsqueeze(-2)).squeeze(-2)


def _resampling(attributes: Any, sizes: list[int]) -> Tensor:
    """Column ``x`` is what becomes of a line that is one at ``x``."""
    kind, *options = attributes
    length, line = sizes
    size = [length]
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "average": lambda t: F.avg_pool1d(t, *options),
        "adaptive_average": lambda t: F.adaptive_avg_pool1d(t, length),
        "nearest": lambda t: aten.upsample_nearest1d.default(t, size, options[1]),
        "nearest_exact": lambda t: aten._upsample_nearest_exact1d.default(t, size, options[1]),
        "linear": lambda t: aten.upsample_linear1d.default(t, size, *options),
        "cubic": _plane(lambda t: aten.upsample_bicubic2d.default(t, [1, *size], options[0], None, options[1])),
        "linear_smoothed": _plane(
            lambda t: aten._upsample_bilinear2d_aa.default(t, [1, *size], options[0], None, options[1])
        ),
        "cubic_smoothed": _plane(
            lambda t: aten._upsample_bicubic2d_aa.default(t, [1, *size], options[0], None, options[1])
        ),
        "reflect": lambda t: aten.reflection_pad1d.default(t, options),
        "repeat": lambda t: aten.replication_pad1d.default(t, options),
    }
    return functions[kind](torch.eye(line, dtype=torch.float64)[None])[0].T


LEAVES: dict[str, Callable[[Any, Any], Tensor]] = {
    "sliding_window": lambda evaluator, term: _window(term.attributes, [evaluator.size(s) for s in term.shape]),
    "resampling": lambda evaluator, term: _resampling(term.attributes, [evaluator.size(s) for s in term.shape]),
}


def _largest(function: Callable[[Any, Tensor], Any], which: int) -> Callable[[Any], Tensor]:
    """Of the samples, all free dimensions at once."""

    def call(cores: Any) -> Tensor:
        space = len(cores.fresh)
        value = cores.alone(0, *range(space))
        flat = value.reshape(-1, 1, *value.shape[len(cores.batch) :]).contiguous()
        result = function(cores, flat)[which]
        return result.reshape(*value.shape[: len(cores.batch)], *result.shape[2:]).double()

    return call


def _max_pool(cores: Any, value: Tensor) -> Any:
    pool = aten.max_pool2d_with_indices if len(cores.fresh) == 2 else aten.max_pool3d_with_indices
    return pool.default(value, *cores.attributes)


def _adaptive_max_pool(cores: Any, value: Tensor) -> Any:
    pool = aten.adaptive_max_pool2d if len(cores.fresh) == 2 else aten.adaptive_max_pool3d
    return pool.default(value, cores.fresh)


CORES: dict[str, Callable[[Any], Tensor]] = {
    "max_pool_values": _largest(_max_pool, 0),
    "max_pool_indices": _largest(_max_pool, 1),
    "adaptive_max_pool_values": _largest(_adaptive_max_pool, 0),
    "adaptive_max_pool_indices": _largest(_adaptive_max_pool, 1),
}
