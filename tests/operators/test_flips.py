"""A value that is flipped twice along one dimension is itself, and one flipped along two is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import verifycompile
from verifycompile import Verdict

X = torch.arange(64, dtype=torch.float64).reshape(8, 8) ** 2
Program = Callable[[torch.Tensor], torch.Tensor]

RIGHT: dict[str, Program] = {
    "twice": lambda x: x.flip(0).flip(0) + 1,
    "along both dimensions and back": lambda x: x.flip(0, 1).flip(1).flip(0) + 1,
    "transposed in between": lambda x: x.flip(0).t().flip(1).t() + 1,
    "scaled in between": lambda x: (2 * x.flip(0) + x.flip(0)).flip(0) - 2 * x + 1,
}
WRONG: dict[str, Program] = {
    "three times": lambda x: x.flip(0).flip(0).flip(0) + 1,
    "along two dimensions": lambda x: x.flip(0).flip(1) + 1,
    "transposed in between, and the same number": lambda x: x.flip(0).t().flip(0).t() + 1,
    "half of it": lambda x: torch.cat([x.flip(0)[:4].flip(0), x[4:]]) + 1,
    "in halves": lambda x: torch.cat([x[:4].flip(0), x[4:].flip(0)]).flip(0) + 1,
    "another value in between": lambda x: (x.flip(0) + x).flip(0) + 1 - x,
    "rows that repeat": lambda x: x.flip(0)[0].expand(8, 8).flip(0) + 1,
}


def verdict(program: Program, placement: Placement) -> Verdict:
    local = X[:, :4].contiguous() if isinstance(placement, Shard) else X

    def traced(function: Program, value: torch.Tensor) -> torch.fx.GraphModule:
        return make_fx(function, tracing_mode="fake")(value)

    placed = {"x_1": (placement,)}, {"output.0": (placement,)}
    return verifycompile.verify_graphs(traced(lambda x: x + 1, X), traced(program, local), *placed, mesh=(2,)).verdict


@pytest.mark.parametrize("name", RIGHT)
def test_flipped_back(name: str) -> None:
    assert torch.equal(RIGHT[name](X), X + 1)
    assert verdict(RIGHT[name], Replicate()) is Verdict.VERIFIED


@pytest.mark.parametrize("name", WRONG)
def test_not_flipped_back(name: str) -> None:
    assert not torch.allclose(WRONG[name](X), X + 1)
    assert verdict(WRONG[name], Replicate()) is Verdict.REFUTED


def test_the_other_dimension_may_be_sharded() -> None:
    assert verdict(RIGHT["twice"], Shard(1)) is Verdict.VERIFIED
    assert verdict(WRONG["three times"], Shard(1)) is Verdict.REFUTED
