"""The buckets at which Dynamo cuts graphs of ``DistributedDataParallel``: proved whole, compiled in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

import verifycompile
from tests.support import fake_mesh_world
from verifycompile.backends.verify import verify
from verifycompile.torch_interface.dynamo.backend import unwrapped

WIDTH = 600
"""One layer's weights are 1.4 MB: more than the first bucket, which holds 1 MB."""


class Layers(nn.Module):
    """A mean of squares, or with ``total`` a sum, whose gradients must not be averaged."""

    def __init__(self, total: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.total = total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = self.layers(x) ** 2
        return squares.sum() if self.total else squares.mean()


def wrapped_layers(total: bool) -> DistributedDataParallel:
    return DistributedDataParallel(Layers(total), bucket_cap_mb=1)


def compiled(wrapped: nn.Module, seen: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(len(gm.graph.nodes))
        return gm

    options = {"in_placements": {"x": (Shard(0),)}, "inner": inner}
    return torch.compile(wrapped, backend="verify", options=options)


def test_the_whole_graph_is_proved_and_its_pieces_are_compiled() -> None:
    pieces: list[int] = []
    with fake_mesh_world((2,), ("dp",)), torch.no_grad():
        torch._dynamo.reset()
        wrapped, x = wrapped_layers(total=False), torch.randn(4, WIDTH)
        found = compiled(wrapped, pieces)(x)
        assert len(pieces) == 2
        torch.testing.assert_close(found, wrapped.module(x))


def test_a_wrong_scale_is_refused_before_any_piece_is_compiled() -> None:
    pieces: list[int] = []
    with fake_mesh_world((2,), ("dp",)):
        torch._dynamo.reset()
        with pytest.raises(verifycompile.RefinementError, match="averaged over"):
            compiled(wrapped_layers(total=True), pieces)(torch.randn(4, WIDTH))
    assert not pieces


def test_other_backends_get_the_pieces() -> None:
    pieces: list[int] = []

    def other(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        pieces.append(len(gm.graph.nodes))
        return gm

    assert unwrapped(other) is other
    assert unwrapped(verify) is verify
    with fake_mesh_world((2,), ("dp",)), torch.no_grad():
        torch._dynamo.reset()
        torch.compile(wrapped_layers(total=False), backend=other)(torch.randn(4, WIDTH))
    assert len(pieces) == 2
