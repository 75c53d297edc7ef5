"""What only one side trains, returns or keeps: a difference of the boundary is a finding, or an option says it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.attacks.jobs import WHOLE, Job, Programs, failures, outcomes
from tests.sampled import taken

PROGRAMS = Programs()
WAYS = itertools.cycle(("verify", "compile", "compile", "verify"))
"""Whatever is wrong of one side is asked about in one way, and what is wrong of the other side mostly in the other;
a run that takes one side of each change asks in both.
"""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("steps", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.tanh(self.up(x))) * self.scale


def x() -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def pair(name: str, change: Callable[[nn.Module], Any], *, both: bool = True, layout: Any = WHOLE) -> None:
    """``change`` of one side is wrong, of ``both`` right."""

    def made(changed: bool) -> nn.Module:
        model = Model()
        return (change(model) or model) if changed else model

    def job(implementation: bool, spec: bool) -> Callable[[DeviceMesh], Job]:
        return lambda mesh: Job(lambda: made(implementation), made(spec), (x(),), {"x": layout}, backward=True)

    PROGRAMS.add(f"wrong_{name}_of_the_implementation", job(True, False), right=False, ways=(next(WAYS),), numbers=False)
    PROGRAMS.add(f"wrong_{name}_of_the_spec", job(False, True), right=False, ways=(next(WAYS),), numbers=False)
    if both:
        PROGRAMS.add(f"right_{name}_of_both", job(True, True), right=True, ways=(next(WAYS),), numbers=False)


def freeze(*names: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if not names or name in names:
                parameter.requires_grad_(False)

    return change


pair("frozen_weight", freeze("up.weight"))
pair("frozen_bias", freeze("down.bias"))
pair("frozen_layer", freeze("up.weight", "up.bias"))
pair("everything_frozen", freeze(), both=False)


class WithMore(Model):
    """Returns more than the other side."""

    def forward(self, x: torch.Tensor) -> Any:
        hidden = torch.tanh(self.up(x))
        return self.down(hidden) * self.scale, hidden.sum()


class Detached(Model):
    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.tanh(self.up(x)).detach()) * self.scale


class WithoutGradient(Model):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            hidden = torch.tanh(self.up(x))
        return self.down(hidden) * self.scale


class WithStep(Model):
    """Writes a buffer that the other side leaves as it is."""

    def forward(self, x: torch.Tensor) -> Any:
        self.steps.add_(1)
        return super().forward(x)


class WithMean(Model):
    def forward(self, x: torch.Tensor) -> Any:
        self.steps.mul_(0.9).add_(0.1 * x.detach().mean())
        return super().forward(x)


class WritesItsInput(Model):
    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        x.detach().mul_(2)
        return found


class WithMoreParameters(Model):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) * self.extra


class InAList(Model):
    def forward(self, x: torch.Tensor) -> Any:
        return [super().forward(x), torch.zeros(1)]


class Twice(Model):
    def forward(self, x: torch.Tensor) -> Any:
        found = super().forward(x)
        return found, found


for made in (
    WithMore, Detached, WithoutGradient, WithStep, WithMean, WritesItsInput, WithMoreParameters, InAList, Twice,
):  # fmt: skip
    pair(made.__name__, lambda m, c=made: c(), both=made is not WritesItsInput)


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.sweep)])
def test_programs(every: int) -> None:
    """Every run takes each change on one side, of neighbouring changes on the other, and half of those on both."""
    wrong = taken([p for p in PROGRAMS if not p.right], every, lambda p: p.name.partition("_of_")[0])
    chosen = {p.name: p for p in (*wrong, *taken([p for p in PROGRAMS if p.right], every))}
    assert failures(Programs(chosen), outcomes(__file__, *chosen)) == []
