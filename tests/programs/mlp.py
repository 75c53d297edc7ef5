"""A two-layer perceptron, column-wise then row-wise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.programs.case import Case, Plan, tensor_parallel, tensor_parallel_mesh


class MLP(nn.Module):
    def __init__(self, dim: int = 16, hidden: int = 32, bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.activation = nn.ReLU() if activation == "relu" else nn.GELU()
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))


class ResidualMLP(MLP):
    """Its result is needed in full: a layer norm is not linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + super().forward(x), x.shape[-1:])


def plan() -> Plan:
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def inputs() -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(8, 16, generator=generator),)


def case(degree: int, *, data_parallel: int = 1, bias: bool = True, activation: str = "relu") -> Case:
    mesh = tensor_parallel_mesh(degree, data_parallel)
    name = f"mlp-{activation}{'' if bias else '-nobias'}-{'x'.join(str(size) for _, size in mesh)}"
    return Case(name, mesh, lambda: MLP(bias=bias, activation=activation), tensor_parallel(plan()), inputs)


def residual_case(degree: int, *, data_parallel: int = 1) -> Case:
    mesh = tensor_parallel_mesh(degree, data_parallel)
    name = f"mlp-residual-{'x'.join(str(size) for _, size in mesh)}"
    return Case(name, mesh, ResidualMLP, tensor_parallel(plan()), inputs)
