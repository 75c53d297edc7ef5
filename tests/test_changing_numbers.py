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
        self.factor = 0.5

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
    "not": lambda x, _: x + 0,
    "over": lambda x, number: x / number,
}


def second_call(model: Scaled, **options: Any) -> None:
    """Compiles, and compiles again after the number has changed."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="verify", options={"inner": "eager", **options})
    try:
        compiled(torch.randn(4, 8)).sum().backward()
    except RefinementError:
        assert options  # wrong with the first number too
    model.factor = 0.25
    options["spec"].factor = 0.25
    compiled(torch.randn(4, 8)).sum().backward()


@pytest.mark.parametrize("name", RIGHT)
def test_verifies(name: str) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(Scaled(RIGHT[name]), mesh, plan)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="verify", options={"inner": "eager"})
        for number in (0.5, 0.25, 0.75):
            model.factor = number
            compiled(torch.randn(4, 8)).sum().backward()


@pytest.mark.parametrize("name", WRONG)
def test_another_use_is_refuted(name: str) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(Scaled(WRONG[name]), mesh, plan)
        with pytest.raises(RefinementError) as refused:
            second_call(model, spec=Scaled(times))
    assert refused.value.report.verdict is Verdict.REFUTED


def test_a_number_that_the_spec_does_not_share() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model, spec = parallelize_module(Scaled(times), mesh, plan), Scaled(times)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="verify", options={"inner": "eager", "spec": spec})
        compiled(torch.randn(4, 8)).sum().backward()
        model.factor = 0.25
        with pytest.raises(RefinementError):
            compiled(torch.randn(4, 8))
