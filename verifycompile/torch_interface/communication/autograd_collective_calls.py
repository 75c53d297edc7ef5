# ruff: noqa: A002, PLR0917  # torch's own signatures
"""``torch.distributed.nn.functional``: its functions refuse to be compiled; Dynamo traces what they do instead.

Forward and backward are those of torch's ``torch.autograd.Function`` of each, over the in-place collectives, which
``collective_calls`` writes functionally. The gradient of a sum over ranks is the sum of the ranks' gradients.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

_module: Any = importlib.import_module("torch.distributed.nn.functional")
Tensors = list[torch.Tensor]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.src, ctx.group = src, group
        tensor = tensor.clone()
        dist.broadcast(tensor, src, group=group)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # autograd calls it by position
        gradient = grad_output.clone()
        dist.reduce(gradient, ctx.src, group=ctx.group)
        if dist.get_rank() != ctx.src:
            gradient = torch.zeros_like(gradient)
        return None, None, gradient


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dst: int, op: str, group: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.dst, ctx.group = dst, group
        tensor = tensor.clone()
        dist.reduce(tensor, dst, op, group=group)  # type: ignore[arg-type]  # its name, where it is traced
        return tensor

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # autograd calls it by position
        gradient = grad_output.clone()
        dist.broadcast(gradient, ctx.dst, group=ctx.group)
        return None, None, None, gradient


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, group: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.op, ctx.group = op, group
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(tensor, op, group=group)  # type: ignore[arg-type]  # its name, where it is traced
        return tensor

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # autograd calls it by position
        gradient = grad_output.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, ctx.op, group=ctx.group)
        return None, None, gradient


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, tensor: torch.Tensor) -> Any:
        ctx.group = group
        outputs = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(outputs, tensor.contiguous(), group=group)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradient = torch.empty_like(grad_outputs[0])
        dist.reduce_scatter(gradient, [part.contiguous() for part in grad_outputs], group=ctx.group)
        return None, gradient


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, group: Any, output: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        ctx.group = group
        result = torch.empty_like(output)
        dist.reduce_scatter(result, [part.contiguous() for part in parts], op, group=group)  # type: ignore[arg-type]  # its name, where it is traced
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # autograd calls it by position
        gradients = [torch.empty_like(grad_output) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(gradients, grad_output.contiguous(), group=ctx.group)
        return None, None, None, *gradients


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, outputs: Tensors, *parts: torch.Tensor) -> Any:
        ctx.group = group
        ctx.shapes = [part.shape for part in parts]
        results = [torch.empty_like(output) for output in outputs]
        dist.all_to_all(results, [part.contiguous() for part in parts], group=group)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        gradients = [grad_outputs[0].new_empty(shape) for shape in ctx.shapes]
        dist.all_to_all(gradients, [part.contiguous() for part in grad_outputs], group=ctx.group)
        return None, None, *gradients


class _AllToAllSingle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: Any, output: torch.Tensor, received: Any, sent: Any, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.group, ctx.shape, ctx.received, ctx.sent = group, tensor.shape, received, sent
        result = torch.empty_like(output)
        dist.all_to_all_single(result, tensor.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # autograd calls it by position
        gradient = grad_output.new_empty(ctx.shape)
        dist.all_to_all_single(gradient, grad_output.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return None, None, None, None, gradient


def broadcast(tensor: torch.Tensor, src: int, group: Any = None) -> Any:
    return _Broadcast.apply(src, group, tensor)


def reduce(tensor: torch.Tensor, dst: int, op: str = "sum", group: Any = None) -> Any:
    return _Reduce.apply(dst, op, group, tensor)


def reduce_scatter(output: torch.Tensor, input_list: Tensors, op: str = "sum", group: Any = None) -> Any:
    return _ReduceScatter.apply(op, group, output, *input_list)


def all_gather(tensor: torch.Tensor, group: Any = None) -> Any:
    return _AllGather.apply(group, tensor)


def all_to_all(output_tensor_list: Tensors, input_tensor_list: Tensors, group: Any = None) -> Any:
    return _AllToAll.apply(group, output_tensor_list, *input_tensor_list)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> Any:
    return _AllToAllSingle.apply(group, output, output_split_sizes, input_split_sizes, input)


def all_reduce(tensor: torch.Tensor, op: str = "sum", group: Any = None) -> Any:
    return _AllReduce.apply(op, group, tensor)


REPLACEMENTS: dict[Any, Any] = {
    getattr(_module, function.__name__): function
    for function in (broadcast, reduce, reduce_scatter, all_gather, all_to_all, all_to_all_single, all_reduce)
}
"""torch's function -> the one that is traced in its place."""
