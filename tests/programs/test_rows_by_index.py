"""One element of each row by ``x[arange(rows), index]``: its gradient is written back to where it was read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.tensor import Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

ROWS = (Shard(0),)


def picked(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]), index] * 2


def probability(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)[torch.arange(x.shape[0]), index]


def loss(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -x.log_softmax(-1)[torch.arange(len(x)), index]


def column(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.t()[index, torch.arange(x.shape[0])] * 2


def next_one(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0]), (index + 1) % x.shape[1]] * 2


def without_gradient_of_the_divisor(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return -(x - x.detach().logsumexp(-1, keepdim=True))[torch.arange(len(x)), index]


@pytest.mark.parametrize(
    ("spec", "program", "verdict"),
    [
        (picked, picked, Verdict.VERIFIED),
        (probability, probability, Verdict.VERIFIED),
        (loss, loss, Verdict.VERIFIED),
        (picked, column, Verdict.VERIFIED),
        (picked, next_one, Verdict.REFUTED),
        (picked, probability, Verdict.REFUTED),
        (loss, without_gradient_of_the_divisor, Verdict.REFUTED),
    ],
)
def test_one_element_of_each_row(
    spec: Callable[..., torch.Tensor], program: Callable[..., torch.Tensor], verdict: Verdict
) -> None:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            program,
            (torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64)),
            spec=spec,
            mesh=mesh,
            in_placements={"x": ROWS, "index": ROWS},
            out_placements={"output.0": ROWS},
        )
    assert report.verdict is verdict, str(report)
