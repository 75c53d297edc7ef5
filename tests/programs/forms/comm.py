"""Collectives with gradients, as small projects keep them in a file of helpers: on groups, by name of the mesh axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


def total(x: torch.Tensor, group: Any, operation: str = "sum") -> torch.Tensor:
    """The reduction over the group, outside of autograd."""
    return funcol.all_reduce(x.contiguous(), operation, group)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return funcol.all_reduce(grads[0].contiguous(), "sum", ctx.group), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return funcol.all_reduce(x.contiguous(), "sum", group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Gather(torch.autograd.Function):
    """All parts along a dimension; the gradient is summed and scattered, or (``cut``) each rank takes its part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, group: Any, cut: bool) -> torch.Tensor:
        ctx.dim, ctx.group, ctx.cut, ctx.size = dim, group, cut, x.shape[dim]
        return funcol.all_gather_tensor(x.contiguous(), dim, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if ctx.cut:
            own = grad.narrow(ctx.dim, dist.get_rank(ctx.group) * ctx.size, ctx.size)
        else:
            own = funcol.reduce_scatter_tensor(grad.contiguous(), "sum", ctx.dim, ctx.group)
        return own, None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return funcol.reduce_scatter_tensor(x.contiguous(), "sum", dim, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return funcol.all_gather_tensor(grads[0].contiguous(), ctx.dim, ctx.group), None, None


class _Exchange(torch.autograd.Function):
    """All-to-all of equal parts along dimension 0, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return funcol.all_to_all_single(x.contiguous(), None, None, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return funcol.all_to_all_single(grads[0].contiguous(), None, None, ctx.group), None


def enter(x: torch.Tensor, group: Any) -> torch.Tensor:
    return _Enter.apply(x, group)  # pyright: ignore[reportReturnType]


def leave(x: torch.Tensor, group: Any) -> torch.Tensor:
    return _Leave.apply(x, group)  # pyright: ignore[reportReturnType]


def gather(x: torch.Tensor, dim: int, group: Any, cut: bool = False) -> torch.Tensor:
    return _Gather.apply(x, dim, group, cut)  # pyright: ignore[reportReturnType]


def scatter(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    return _Scatter.apply(x, dim, group)  # pyright: ignore[reportReturnType]


def exchange(x: torch.Tensor, group: Any) -> torch.Tensor:
    return _Exchange.apply(x, group)  # pyright: ignore[reportReturnType]
