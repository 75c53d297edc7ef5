"""What only some ranks write to, or compute the gradient of, is as it was on the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Verdict, verify


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x.sum(0))
        return x @ self.weight


class Ranks(Counting):
    """``mistake``: what the second rank does not do."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = dist.get_rank() == 0
        if first or self.mistake == "":
            self.count.add_(x.sum(0))
        elif self.mistake == "reads":
            self.count.mul_(1)
        elif self.mistake == "gradient":
            self.count.add_(x.sum(0))
            return x @ self.weight.detach()
        return x @ self.weight


@pytest.mark.parametrize("mistake", ["", "nothing", "reads", "gradient"])
def test_what_one_rank_leaves_out(mistake: str) -> None:
    with fake_mesh_world((2,), ("ranks",)) as mesh:
        report = verify(None, (torch.randn(2, 3),), build=lambda: Ranks(mistake), spec=Counting(), mesh=mesh)
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


class Filled(nn.Module):
    """Each rank writes its rows into zeros; the sum of the ranks is the whole."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, rows = dist.get_rank(), x.shape[0]
        buffer = torch.zeros(2 * rows, 3) if self.mistake != "ones" else torch.ones(2 * rows, 3)
        place = 0 if self.mistake == "first" else rank * rows
        buffer[place : place + rows] = x.exp()
        dist.all_reduce(buffer, op=dist.ReduceOp.AVG if self.mistake == "mean" else dist.ReduceOp.SUM)
        return buffer


@pytest.mark.parametrize("mistake", ["", "ones", "first", "mean"])
def test_parts_written_into_zeros(mistake: str) -> None:
    with fake_mesh_world((2,), ("ranks",)) as mesh:
        report = verify(
            None,
            (torch.randn(2, 3),),
            build=lambda: Filled(mistake),
            spec=torch.exp,
            mesh=mesh,
            in_placements={"x": (Shard(0),)},
            out_placements={"output.0": (Replicate(),)},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4).requires_grad_(False)
        self.second = nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class StageOfRank(Stages):
    """Each rank uses the parameters of its own stage."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        if dist.get_rank() == 0:
            hidden = self.first(x)
            dist.send(hidden if self.mistake == "no activation" else torch.tanh(hidden), 1)
        else:
            hidden = torch.empty(x.shape[0], 4)
            dist.recv(hidden, 0)
            result = self.second(hidden)
        dist.broadcast(result, 0 if self.mistake == "source" else 1)
        return result * (2 if self.mistake == "scale" else 1)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mistake", ["", "no activation", "source", "scale"])
def test_stages_of_one_module(mistake: str) -> None:
    with fake_mesh_world((2,), ("stages",)) as mesh:
        options: Any = {"spec": Stages(), "mesh": mesh, "out_placements": {"output.0": (Replicate(),)}}
        report = verify(None, (torch.randn(2, 3),), build=lambda: StageOfRank(mistake), **options)
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
