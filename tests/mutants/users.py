"""Mistakes that a user makes: in the plan, in a module's code, in a hook around a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

from tests.programs.case import Case, Plan, tensor_parallel

Hook = Callable[[DeviceMesh], Callable[[torch.Tensor], torch.Tensor]]


def with_style(case: Case, plan: Plan, ties: tuple[tuple[str, str], ...] = (), **styles: ParallelStyle) -> Case:
    """The case with other styles for some modules; ``__`` stands for ``.`` in their names, ``each`` for ``*``."""
    named = {name.replace("__", ".").replace("each", "*"): style for name, style in styles.items()}
    assert named.keys() <= plan.keys(), named.keys() - plan.keys()
    return replaced(case, tensor_parallel({**plan, **named}, *ties))


def with_output_hook(case: Case, module: str, hook: Hook) -> Case:
    """The case with a function of the output of one module, applied on every rank."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        model = case.parallelize(model, mesh)
        applied = hook(mesh)
        model.get_submodule(module).register_forward_hook(lambda _module, _inputs, output: applied(output))
        return model

    return replaced(case, parallelize)


def with_model(case: Case, change: Callable[[nn.Module], None]) -> Case:
    """The case with a model whose code is wrong, parallelized by the right plan."""

    def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        change(model)
        return case.parallelize(model, mesh)

    return replaced(case, parallelize)


def replaced(case: Case, parallelize: Callable[[nn.Module, DeviceMesh], nn.Module]) -> Case:
    """The case parallelized in another way."""
    return dataclasses.replace(case, parallelize=parallelize)


def redistributed(axis: str, found: Placement, wanted: Placement) -> Hook:
    """Treats each rank's output as laid out like ``found`` over a mesh axis and changes that to ``wanted``."""

    def on(mesh: DeviceMesh) -> Callable[[torch.Tensor], torch.Tensor]:
        submesh = mesh[axis]

        def hook(output: torch.Tensor) -> torch.Tensor:
            placed = DTensor.from_local(output, submesh, [found], run_check=False)
            return placed.redistribute(placements=[wanted]).to_local()

        return hook

    return on


def reduced_again(axis: str = "tp") -> Hook:
    """Sums over the ranks what has been summed already."""
    return redistributed(axis, Partial(), Replicate())


def scaled(factor: float) -> Hook:
    """Multiplies the output."""
    return lambda mesh: lambda output: output * factor


class LocalLinear(nn.Linear):
    """A linear layer on each rank's shard of its weight; nobody reduces the cotangent of its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (the name of nn.Linear)
        weight, bias = (p.to_local() if isinstance(p, DTensor) else p for p in (self.weight, self.bias))
        return nn.functional.linear(input, weight, bias)


class ColwiseByHand(ParallelStyle):
    """Column-wise weights without the hooks of ``ColwiseParallel``: right forward, partial gradient of the input."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def shard(_name: str, linear: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in linear.named_parameters(recurse=False):
                linear.register_parameter(name, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)])))

        module.__class__ = LocalLinear
        return distribute_module(module, device_mesh, shard)
