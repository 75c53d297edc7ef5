"""Batch normalization over the rows of all ranks, written by hand with sums and counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

from tests.support import fake_world
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.model import verify

ROWS = (Shard(0),)


class Sum(torch.autograd.Function):
    """The sum over ranks; so is its gradient, because every rank goes on with the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        x = x.clone()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        return x

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = grad_output.clone()
        dist.all_reduce(gradient)
        return gradient


class Copy(torch.autograd.Function):
    """A parameter on every rank, whose gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = grad_output.clone()
        dist.all_reduce(gradient)
        return gradient


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(0)
        variance = ((x - mean) ** 2).mean(0)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class Synchronized(Norm):
    def __init__(self, ranks: int, mistake: str = "") -> None:
        super().__init__()
        self.ranks, self.mistake = ranks, mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0] * (1 if self.mistake == "count" else self.ranks)
        mean = Sum.apply(x.sum(0)) / count
        squares = ((x - mean) ** 2).sum(0)
        variance = squares / x.shape[0] if self.mistake == "local variance" else Sum.apply(squares) / count
        weight, bias = Copy.apply(self.weight), Copy.apply(self.bias)
        if self.mistake == "local gradient":
            weight = self.weight
        return (x - mean) * torch.rsqrt(variance + 1e-5) * weight + bias


def report_on(ranks: int, mistake: str = "") -> Report:
    with fake_world(ranks):
        x = torch.randn(4, 6, requires_grad=True)
        placements: Any = {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}}
        return verify(Synchronized(ranks, mistake), (x,), spec=Norm(), **placements)


@pytest.mark.parametrize("ranks", [2, 4])
def test_verifies(ranks: int) -> None:
    report = report_on(ranks)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {"output.0", "grad.x", "grad.weight", "grad.bias"} <= report.relations.keys()


@pytest.mark.parametrize("mistake", ["count", "local variance", "local gradient"])
def test_mistake_is_refuted(mistake: str) -> None:
    report = report_on(2, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)
