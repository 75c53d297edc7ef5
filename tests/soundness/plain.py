"""Pairs of small programs over plain tensors, with hand-written collectives: spec, and what one rank runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report

Spec = Callable[..., Any]
"""``(*inputs)``, or ``(module, *inputs)`` for a program with parameters."""
Implementation = Callable[..., Any]
"""``(mesh, *inputs)``, or ``(mesh, module, *inputs)`` for a program with parameters."""


class Function(nn.Module):
    """A function as a module; ``parameters`` and ``buffers`` become its attributes."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Mapping[str, torch.Tensor] | None = None,
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.function = function
        for name, value in (parameters or {}).items():
            setattr(self, name, nn.Parameter(value))
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def verify_functions(
    spec: Spec,
    implementation: Implementation,
    inputs: Sequence[torch.Tensor],
    shape: tuple[int, ...] = (2,),
    **options: Any,
) -> Report:
    """The report on two functions of tensors; ``inputs``: what one rank passes, called ``a``, ``b``, ...

    ``shape``: sizes of the mesh axes, which are called ``x``, ``y``, ...
    """
    with fake_mesh_world(shape, ("x", "y", "z")[: len(shape)], rank=1) as mesh:
        return verifycompile.verify(
            _named(lambda *a: implementation(mesh, *a), len(inputs)),
            tuple(inputs),
            mesh=mesh,
            spec=_named(spec, len(inputs)),
            **options,
        )


def _named(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The function with arguments ``a``, ``b``, ... in place of variadic ones."""
    if count == 1:
        return lambda a: function(a)
    if count == 2:
        return lambda a, b: function(a, b)
    return lambda a, b, c: function(a, b, c)


def verify_modules(
    build: Callable[[DeviceMesh], tuple[nn.Module, nn.Module]],
    inputs: Sequence[torch.Tensor],
    shape: tuple[int, ...] = (2,),
    **options: Any,
) -> Report:
    """The report on ``(spec, implementation)`` as ``build`` makes them on a mesh of axes ``x``, ``y``, ..."""
    with fake_mesh_world(shape, ("x", "y", "z")[: len(shape)], rank=1) as mesh:
        spec, implementation = build(mesh)
        return verifycompile.verify(implementation, tuple(inputs), mesh=mesh, spec=spec, **options)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
        context.group = (mesh, axis)
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return collectives.all_reduce(gradient.contiguous(), "sum", context.group), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
        return collectives.all_reduce(value.contiguous(), "sum", (mesh, axis))

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient, None, None


def copy_in(value: torch.Tensor, mesh: DeviceMesh, axis: int = 0) -> torch.Tensor:
    """The value itself; its gradient is summed over the mesh axis."""
    return _Copy.apply(value, mesh, axis)  # pyright: ignore[reportReturnType]


def reduce_out(value: torch.Tensor, mesh: DeviceMesh, axis: int = 0) -> torch.Tensor:
    """The sum over the mesh axis; its gradient passes as it is."""
    return _Reduce.apply(value, mesh, axis)  # pyright: ignore[reportReturnType]


def all_reduce(value: torch.Tensor, mesh: DeviceMesh, axis: int = 0, operation: str = "sum") -> torch.Tensor:
    return collectives.all_reduce(value, operation, (mesh, axis))


def all_gather(value: torch.Tensor, mesh: DeviceMesh, axis: int = 0, dim: int = 0) -> torch.Tensor:
    return collectives.all_gather_tensor(value, dim, (mesh, axis))


def reduce_scatter(
    value: torch.Tensor, mesh: DeviceMesh, axis: int = 0, dim: int = 0, operation: str = "sum"
) -> torch.Tensor:
    return collectives.reduce_scatter_tensor(value, operation, dim, (mesh, axis))
