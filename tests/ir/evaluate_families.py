"""Meanings of operations that the interpreter takes from torch as they are, by family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
aten = torch.ops.aten


def gradient_of(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def derivative(x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(function(point).sum(), point)
        return gradient

    return derivative


def _binary_cross_entropy_derivative(x: Tensor, target: Tensor) -> Tensor:
    x, target = (t.contiguous() for t in torch.broadcast_tensors(x, target))
    return aten.binary_cross_entropy_backward.default(torch.ones_like(x), x, target, None, 0)


def _in_bin(attributes: Sequence[Any], value: Tensor, number: Tensor) -> Tensor:
    bins, lowest, highest = attributes
    inside = (value >= lowest) & (value <= highest)
    bin_of_value = ((value - lowest) / (highest - lowest) * bins).floor().clamp(max=bins - 1)
    return (inside & (bin_of_value == number)).to(value.dtype)


POINTWISE: dict[str, Callable[..., Tensor]] = {
    "in_bin": _in_bin,
    "hardsigmoid_derivative": lambda _, x: aten.hardsigmoid_backward.default(torch.ones_like(x), x.contiguous()),
    "log_sigmoid": lambda _, x: F.logsigmoid(x),
    "log_sigmoid_buffer": lambda _, x: aten.log_sigmoid_forward.default(x.contiguous())[1],
    "log_sigmoid_derivative": lambda _, x, buffer: aten.log_sigmoid_backward.default(
        torch.ones_like(x), *(t.contiguous() for t in torch.broadcast_tensors(x, buffer))
    ),
    "binary_cross_entropy_derivative": lambda _, x, y: _binary_cross_entropy_derivative(x, y),
    "xlogy": lambda _, x, y: torch.xlogy(x, y),
    "entropy": lambda _, x: torch.special.entr(x),
    "power_of_number": lambda a, x: torch.pow(a[0], x),
    "power_of_tensor": lambda _, x, y: torch.pow(x, y),
    "nextafter": lambda a, x, y: torch.nextafter(x.to(a[0]), y.to(a[0])).double(),
    "atan2": lambda _, x, y: torch.atan2(x, y),
    "nan_to_num": lambda a, x: torch.nan_to_num(x.to(a[3]), *a[:3]).double(),
    "isnan": lambda _, x: torch.isnan(x).double(),
    "isinf": lambda _, x: torch.isinf(x).double(),
    "isfinite": lambda _, x: torch.isfinite(x).double(),
    "signbit": lambda _, x: torch.signbit(x).double(),
}


def _along(function: Callable[..., Tensor]) -> Callable[[Any], Tensor]:
    """A function of the rows of one operand, ``(attributes, rows)``."""
    return lambda cores: function(cores.attributes, cores.alone(0, 0).contiguous())


def _pair(function: Callable[[Sequence[Any], Tensor, int], Any], which: int) -> Callable[[Any], Tensor]:
    return lambda cores: function(cores.attributes, cores.alone(0, 0).contiguous(), cores.fresh[0])[which].double()


def _topk(a: Sequence[Any], x: Tensor, k: int) -> Any:
    return torch.topk(x, k, -1, *a)


def _sort(a: Sequence[Any], x: Tensor, _: int) -> Any:
    return aten.sort.stable(x, stable=a[1], dim=-1, descending=a[0]) if a[1] else aten.sort.default(x, -1, a[0])


def _scatter(cores: Any) -> Tensor:
    table, index, source = cores.alone(0, 0), cores.alone(1, 1), cores.alone(2, 1)
    return torch.scatter(table.contiguous(), -1, index.to(torch.int64), source)


def _scatter_mask(cores: Any) -> Tensor:
    index = cores.alone(0, 0).to(torch.int64)
    return torch.zeros([*cores.batch, *cores.fresh], dtype=torch.float64).scatter(-1, index, 1.0)


CORES: dict[str, Callable[[Any], Tensor]] = {
    "cumulative_product": _along(lambda _, x: x.cumprod(-1)),
    "cumulative_logsumexp": _along(lambda _, x: x.logcumsumexp(-1)),
    "product_of_all": _along(lambda _, x: x.prod(-1, keepdim=True)),
    "flip": _along(lambda _, x: x.flip(-1)),
    "roll": _along(lambda a, x: x.roll(a[0], -1)),
    "topk_values": _pair(_topk, 0),
    "topk_indices": _pair(_topk, 1),
    "sort_values": _pair(_sort, 0),
    "sort_indices": _pair(_sort, 1),
    "kth_value": _pair(lambda a, x, _: x.kthvalue(a[0], -1, True), 0),
    "kth_index": _pair(lambda a, x, _: x.kthvalue(a[0], -1, True), 1),
    "median_value": _pair(lambda a, x, _: x.median(-1, True), 0),
    "median_index": _pair(lambda a, x, _: x.median(-1, True), 1),
    "argmax": _along(lambda _, x: x.argmax(-1, keepdim=True).double()),
    "argmin": _along(lambda _, x: x.argmin(-1, keepdim=True).double()),
    "any": lambda cores: (cores.operands[0].flatten(len(cores.batch)) != 0).any(-1).double(),
    "scatter": _scatter,
    "scatter_mask": _scatter_mask,
}
