"""Numbers that change after the graph that leaves them open was verified, on two gloo processes; prints the outcomes."""

import datetime as dt
import os
import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from tests.agreement.asked_on_two_ranks import tell
from tests.agreement.scripts.changed_later import Layer, counted, parallel, said
from verifycompile.agreement import held_again


class Scaled(nn.Module):
    """Takes numbers that torch leaves open from the second call on: an argument, one in a container, an attribute."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.layer, self.temperature = parallel(Layer(), mesh), 0.5

    def forward(self, x: torch.Tensor, k: float, settings: dict[str, float]) -> torch.Tensor:
        return self.layer(x) * k * settings["gain"] * self.temperature


class Steps:
    """What a rank passes at each call: ``k`` a real or a whole number."""

    def __init__(self, mesh: DeviceMesh, first: float = 1.5) -> None:
        torch._dynamo.reset()
        self.model, self.k, self.settings = Scaled(mesh), first, {"gain": 1.5}
        self.compiled: Any = torch.compile(self.model, backend="verify", options={"inner": "eager"})

    def call(self) -> str:
        return said(lambda: self.compiled(torch.ones(4, 8), self.k, self.settings))

    def add(self, number: float, gain: float = 0.0, temperature: float = 0.0) -> str:
        self.k += number
        self.settings["gain"] += gain
        self.model.temperature += temperature
        return self.call()

    @staticmethod
    def open(mesh: DeviceMesh, first: float = 1.5) -> "Steps":
        """All three numbers are left open by the second graph."""
        steps = Steps(mesh, first)
        steps.call()
        steps.add(1, 1.0, 1.0)
        return steps


def numbers(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    right = Steps.open(mesh)
    with counted() as begun:
        answers: dict[str, Any] = {"right numbers": [right.add(1), right.add(0, 1.0), right.add(0, 0.0, 1.0)]}
        spoken = len(begun)
        for _ in range(2):
            right.call()
        answers["numbers that stay"] = f"{spoken} times, then {len(begun) - spoken}"
    answers["wrong real argument"] = Steps.open(mesh).add(1.0 + rank)
    answers["wrong whole argument"] = Steps.open(mesh, 3).add(1 + rank)
    answers["wrong number in a container"] = Steps.open(mesh).add(0, 1.0 + rank)
    answers["wrong number of a module"] = Steps.open(mesh).add(0, 0.0, 1.0 + rank)
    second = Steps(mesh)
    second.call()
    answers["wrong second call"] = second.add(1.0 + rank)
    return answers


class Broken(nn.Module):
    """Its second half is a graph behind a graph break, of which nothing is asked."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.layer = parallel(Layer(), mesh)

    def forward(self, x: torch.Tensor, k: float) -> torch.Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y * k


def behind_a_break(mesh: DeviceMesh, rank: int) -> list[str]:
    torch._dynamo.reset()
    compiled: Any = torch.compile(Broken(mesh), backend="verify", options={"inner": "eager"})
    return [said(lambda k=k: compiled(torch.ones(4, 8), k)) for k in (1.5, 2.5, 3.5, 4.5 + rank)]


def alone(mesh: DeviceMesh, rank: int) -> str:
    """Rank 1 passes another number, and rank 0 is in the graph's collective meanwhile."""
    steps = Steps.open(mesh)
    if rank == 0:
        return steps.call()
    os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"] = "1"
    found = steps.add(1)
    del os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"]
    steps.model(torch.ones(4, 8), 1.0, steps.settings)
    return found


def often(mesh: DeviceMesh) -> str:
    """A number that is another one at each call, alike on all ranks: how often they speak, and what they say."""
    steps = Steps.open(mesh)
    with warnings.catch_warnings(record=True) as caught, counted() as begun:
        warnings.simplefilter("always")
        found = [steps.add(1) for _ in range(held_again.MOST_COMPARISONS + 3)]
    ran = sum(text.startswith("ran: ") for text in found)
    return f"{ran} calls, {len(begun)} comparisons, {sum('between calls' in str(item.message) for item in caught)} warnings"


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    answers = numbers(mesh, rank)
    answers["behind a break"] = behind_a_break(mesh, rank)
    answers["often"] = often(mesh)
    answers["alone"] = alone(mesh, rank)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank, dt.timedelta(seconds=60))
