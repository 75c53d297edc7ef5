"""Small models for comparisons, with the collectives of Megatron as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import CompareReport


def all_reduce(x: torch.Tensor, group: Any, operation: str = "sum") -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), operation, group))


def all_gather(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    return functional.wait_tensor(functional.all_gather_single(x.contiguous(), gather_dim=dim, group=group))


def reduce_scatter(x: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    return functional.wait_tensor(functional.reduce_scatter_single(x.contiguous(), "sum", scatter_dim=dim, group=group))


class CopyTo(torch.autograd.Function):
    """Identity; the gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return all_reduce(gradients[0], ctx.group), None


class ReduceFrom(torch.autograd.Function):
    """Sum over the group; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Token ids to a loss."""

    def __init__(self, layers: int = 2, width: int = 16, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 32, bias=False)
        self.to(dtype)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1).float(), labels.flatten())


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, row: type[RowwiseParallel] = RowwiseParallel) -> nn.Module:
    plan: dict[str, Any] = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": row()}
    return parallelize_module(model, mesh, plan)


class LeavesPartial(RowwiseParallel):
    """Forgets the all-reduce."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: Any, mod: Any, outputs: Any, device_mesh: Any
    ) -> torch.Tensor:
        return outputs.to_local()


def miscompiles(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
    """An inner compiler whose kernel for ``gelu`` computes an approximation."""
    for node in graph.graph.nodes:
        if "gelu" in str(node.target):
            node.kwargs = {"approximate": "tanh"}
    graph.recompile()
    return graph


def tokens(batch: int = 4, length: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 32, (2, batch, length), generator=generator)
    return drawn[0], drawn[1]


def on_ranks(
    build: Callable[[DeviceMesh], Any], args: tuple[Any, ...], shape: tuple[int, ...] = (2,),
    names: tuple[str, ...] = ("tp",), **options: Any,
) -> CompareReport:  # fmt: skip
    """``compare`` of a model that is built for each rank."""
    with fake_mesh_world(shape, names) as mesh:
        return verifycompile.compare(None, args, build=lambda: build(mesh), mesh=mesh, **options)


def world_group() -> Any:
    return dist.group.WORLD
