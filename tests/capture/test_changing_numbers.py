"""Attributes that hold real numbers and change between calls are inputs, of the program and of its spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from verifycompile import RefinementError, Verdict

Use = Callable[[torch.Tensor, float], torch.Tensor]


class Scaled(nn.Module):
    """``use``: what is done with the number."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.use = use
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self.down(torch.relu(self.up(x))), self.factor)


def times(x: torch.Tensor, number: float) -> torch.Tensor:
    return x * number


RIGHT: dict[str, Use] = {
    "times": times,
    "over": lambda x, number: x / number,
    "plus": lambda x, number: x + number,
    "minus": lambda x, number: number - x,
}
WRONG: dict[str, Use] = {
    "twice": lambda x, number: x * number * number,
    "over": lambda x, number: x / number,
    "not": lambda x, number: x * number / number,
}
"""What is no product with the number, unless that is 1."""


def call_often(use: Use, numbers: tuple[float, ...], spec: Scaled | None = None, *, shared: bool = True) -> None:
    """Dynamo compiles for the first number, and once more for all others. ``shared``: the spec has the same one."""
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = parallelize_module(Scaled(use), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        torch._dynamo.reset()
        options: dict[str, Any] = {"inner": "eager", **({} if spec is None else {"spec": spec})}
        compiled = torch.compile(model, backend="verify", options=options)
        for number in numbers:
            for holder in (model, spec) if shared else (model,):
                if holder is not None:
                    holder.factor = number
            compiled(torch.randn(4, 8)).sum().backward()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", RIGHT)
def test_verifies(name: str) -> None:
    call_often(RIGHT[name], (1.0, 0.25, 0.75))


def test_verifies_against_a_spec() -> None:
    call_often(times, (1.0, 0.25, 0.75), Scaled(times))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WRONG)
def test_another_use_is_refuted(name: str) -> None:
    call_often(WRONG[name], (1.0,), Scaled(times))
    with pytest.raises(RefinementError) as refused:
        call_often(WRONG[name], (1.0, 0.25), Scaled(times))
    assert refused.value.report.verdict is Verdict.REFUTED


def test_a_number_that_the_spec_does_not_share() -> None:
    call_often(times, (1.0,), Scaled(times), shared=False)
    with pytest.raises(RefinementError):
        call_often(times, (1.0, 0.25), Scaled(times), shared=False)
