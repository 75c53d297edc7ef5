"""Regions of a Dynamo graph, put in their places for reading; and what is read there of the user's inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.torch_interface.dynamo.regions import with_regions_inlined


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


def test_the_body_of_a_region_is_where_the_region_is() -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(module)
        return module

    block = Block()

    def twice(x: torch.Tensor) -> torch.Tensor:
        done: Any = checkpoint(block, x, use_reentrant=False)
        return checkpoint(block, done, use_reentrant=False) + done  # pyright: ignore[reportOperatorIssue]

    torch._dynamo.reset()
    x = torch.randn(2, 4)
    expected = torch.compile(twice, backend=backend)(x)  # pyright: ignore[reportArgumentType]
    (module,) = seen
    inlined = with_regions_inlined(module)
    inputs = [node.name for node in module.graph.find_nodes(op="placeholder")]
    assert [node.name for node in inlined.graph.find_nodes(op="placeholder")] == inputs
    called = [node for node in inlined.graph.nodes if "linear" in str(node.target)]
    assert len(called) == 4
    values = {"x": x, "up": block.up.weight, "down": block.down.weight}
    arguments = [next(v for key, v in values.items() if key in name) for name in inputs]
    assert torch.allclose(inlined(*arguments)[0], expected)
    assert with_regions_inlined(inlined) is inlined


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 3


class Squared(Tripled):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_graphs_inside_of_regions_keep_their_own_names() -> None:
    seen: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        seen.append(module)
        return module

    def both(x: torch.Tensor) -> torch.Tensor:
        one: Any = checkpoint(Tripled.apply, x, use_reentrant=False)
        two: Any = checkpoint(Squared.apply, x, use_reentrant=False)
        return one + two

    torch._dynamo.reset()
    x = torch.randn(2, requires_grad=True)
    torch.compile(both, backend=backend)(x)  # pyright: ignore[reportArgumentType]
    assert torch.allclose(with_regions_inlined(seen[0])(x)[0], 3 * x + x * x)


def test_a_checkpointed_block_says_how_its_input_is_placed() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Block()
        plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
        parallelize_module(model, mesh, plan)
        report = verifycompile.verify(checkpoint_wrapper(model), (torch.randn(4, 4, requires_grad=True),))
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert any("placed (S(0)) by default" in item for item in report.assumptions)
