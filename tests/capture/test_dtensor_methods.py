"""A program that calls DTensor's own methods: its spec is what they are for the only process of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

R, ROWS, COLUMNS = Replicate(), Shard(0), Shard(1)


class Layers(nn.Module):
    def __init__(self, mesh: DeviceMesh, forward: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.up = nn.Parameter(distribute_tensor(torch.randn(16, 8), mesh, [ROWS]))
        self.down = nn.Parameter(distribute_tensor(torch.randn(8, 16), mesh, [COLUMNS]))
        self.mesh, self.function = mesh, forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)

    def made(self, x: torch.Tensor, placement: Placement) -> DTensor:
        return DTensor.from_local(x, self.mesh, [placement])


def whole(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(layers.made(x, R), layers.up).relu()
    return F.linear(hidden, layers.down).full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


def by_parts(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(layers.made(x, R), layers.up).to_local()  # pyright: ignore[reportAttributeAccessIssue]
    result = F.linear(layers.made(hidden.relu(), COLUMNS), layers.down)
    return result.redistribute(placements=[R]).to_local()  # pyright: ignore[reportAttributeAccessIssue]


def normed(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    """With the norm of a rank's own part."""
    hidden = F.linear(layers.made(x, R), layers.up).to_local()  # pyright: ignore[reportAttributeAccessIssue]
    return F.linear(layers.made(hidden / hidden.norm(), COLUMNS), layers.down).full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


def said_to_be_whole(layers: Layers, x: torch.Tensor) -> torch.Tensor:
    """Rows of a rank that are taken for all of them."""
    hidden = F.linear(layers.made(x, R), layers.up).redistribute(placements=[ROWS]).to_local()  # pyright: ignore[reportAttributeAccessIssue]
    return F.linear(layers.made(hidden.relu(), R), layers.down).full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("forward", "right"), [(whole, True), (by_parts, True), (normed, False), (said_to_be_whole, False)]
)
def test_methods_that_move_data_are_none_on_one_device(forward: Callable[..., torch.Tensor], right: bool) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(Layers(mesh, forward), (torch.randn(4, 8),))
    assert report.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(report)
    assert not right or set(report.relations) == {"output.0", "grad.up", "grad.down"}


def test_parts_of_a_sum_are_no_tensor_of_a_single_device() -> None:
    def summed(layers: Layers, x: torch.Tensor) -> torch.Tensor:
        scale: Any = layers.up
        return layers.made(x, Partial()).full_tensor() * scale.full_tensor().sum()

    with (
        fake_mesh_world((2,), ("tp",)) as mesh,
        pytest.raises(verifycompile.UsageError, match="VC307"),
    ):
        verifycompile.verify(Layers(mesh, summed), (torch.randn(4, 8),))


def test_a_cast_is_more_than_a_move() -> None:
    def cast(layers: Layers, x: torch.Tensor) -> torch.Tensor:
        result = F.linear(F.linear(layers.made(x, R), layers.up), layers.down)
        return result.redistribute(placements=[R], forward_dtype=torch.bfloat16).to_local()  # pyright: ignore[reportAttributeAccessIssue]

    with fake_mesh_world((2,), ("tp",)) as mesh, pytest.raises(verifycompile.UsageError, match="redistribute"):
        verifycompile.verify(Layers(mesh, cast), (torch.randn(4, 8),))
