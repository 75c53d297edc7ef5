"""What a program asks of the job is other in the recovered spec: there it has one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

Change = Callable[[torch.Tensor, DeviceMesh], torch.Tensor]


class Perceptron(nn.Module):
    def __init__(self, mesh: DeviceMesh, change: Change) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.mesh, self.change = mesh, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.down(torch.relu(self.up(x))), self.mesh)


def check(change: Change) -> Report:
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return verifycompile.verify(parallelize_module(Perceptron(mesh, change), mesh, plan), (torch.randn(3, 4),))


@pytest.mark.parametrize(
    "change",
    [
        lambda y, mesh: y * dist.get_world_size(),
        lambda y, mesh: y / mesh.size(),
        lambda y, mesh: y + dist.get_rank(),
        lambda y, mesh: y if mesh.get_local_rank() == 0 else 2 * y,
    ],
)
def test_numbers_of_the_job(change: Change) -> None:
    assert check(change).verdict is not Verdict.VERIFIED


def reduced(y: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """As libraries write it: nothing is communicated where there is nobody to communicate with."""
    if dist.get_world_size() == 1:
        return y
    return collectives.all_reduce(y, "sum", mesh.get_group()) / mesh.size()


def test_a_spec_is_recovered_where_communication_depends_on_the_number_of_processes() -> None:
    report = check(reduced)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert check(lambda y, mesh: reduced(y, mesh) * (2 if dist.get_world_size() > 1 else 1)).verdict is Verdict.REFUTED
