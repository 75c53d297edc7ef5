"""Collectives with a gradient of their own, as Megatron writes them, on functional and on legacy collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


class Copy(torch.autograd.Function):
    """To a tensor-parallel region: the identity; its gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return functional.all_reduce(grad.contiguous(), "sum", ctx.group), None


class Reduce(torch.autograd.Function):
    """From a tensor-parallel region: the sum; its gradient is the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return functional.all_reduce(x.contiguous(), "sum", group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return grad, None


class ReduceMax(Reduce):
    """Wrong: the largest of the partial values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return functional.all_reduce(x.contiguous(), "max", group)


class LegacyCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class LegacyReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return grad, None


class GatherRows(torch.autograd.Function):
    """From a sequence-parallel region: all rows; the gradient is summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return functional.all_gather_tensor(x, 0, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return functional.reduce_scatter_tensor(grad.contiguous(), "sum", 0, ctx.group), None


class GatherRowsKeepingOwn(GatherRows):
    """Wrong before a tensor-parallel layer: every rank keeps the gradient of its own use."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        rows = grad.shape[0] // dist.get_world_size(ctx.group)
        return grad.narrow(0, dist.get_rank(ctx.group) * rows, rows), None


class ScatterRows(torch.autograd.Function):
    """To a sequence-parallel region: summed and scattered; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return functional.reduce_scatter_tensor(x.contiguous(), "sum", 0, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return functional.all_gather_tensor(grad.contiguous(), 0, ctx.group), None


class LegacyGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gather_into(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return scatter_into(grad, ctx.group), None


class LegacyScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return scatter_into(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return gather_into(grad, ctx.group), None


def gather_into(x: torch.Tensor, group: Any) -> torch.Tensor:
    out = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    dist.all_gather_into_tensor(  # pyright: ignore[reportDeprecated]  # the name that programs use
        out, x.contiguous(), group=group
    )
    return out


def scatter_into(x: torch.Tensor, group: Any) -> torch.Tensor:
    out = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(  # pyright: ignore[reportDeprecated]  # the name that programs use
        out, x.contiguous(), group=group
    )
    return out


def gather_columns(x: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, -1)


def own_columns(x: torch.Tensor, group: Any) -> torch.Tensor:
    return x.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)].contiguous()


class GatherColumns(torch.autograd.Function):
    """The whole of a tensor whose columns are sharded; the gradient is this rank's columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gather_columns(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return own_columns(grad, ctx.group), None


class SplitColumns(torch.autograd.Function):
    """This rank's columns of a replicated tensor; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return own_columns(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        return gather_columns(grad, ctx.group), None


class SplitColumnsZero(SplitColumns):
    """Wrong: every rank takes the first columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.chunk(dist.get_world_size(group), -1)[0].contiguous()
