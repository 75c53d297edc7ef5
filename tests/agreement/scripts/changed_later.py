"""Tensors that change after the graph that takes them was verified, on two gloo processes; prints what becomes of it."""

import contextlib
import datetime as dt
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.agreement.asked_on_two_ranks import tell
from verifycompile import RefinementError
from verifycompile.agreement import held_again

OF_MODULE = torch.ones(8)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("scale", torch.ones(8))
        self.shift = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) * self.scale * OF_MODULE + self.shift


class Counting(Layer):
    """Writes to its buffer itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x))) + self.scale
        self.scale.add_(1)
        return y


def parallel(layer: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


Change = Callable[[Layer, int], Any]
"""Given the model and the number that the rank writes."""


def written(layer: Layer, number: int) -> None:
    layer.scale.mul_(number)


def attribute_written(layer: Layer, number: int) -> None:
    layer.shift.add_(number)


def global_written(_: Layer, number: int) -> None:
    OF_MODULE.mul_(number)


def replaced(layer: Layer, number: int) -> None:
    layer.scale = torch.full((8,), float(number))


def memory_replaced(layer: Layer, number: int) -> None:
    layer.scale.data = torch.full((8,), float(number))


def bias_replaced(layer: Layer, number: int) -> None:
    bias: Any = layer.down.bias
    held = DTensor.from_local(torch.full((8,), float(number)), bias.device_mesh, bias.placements, run_check=False)
    layer.down.bias = nn.Parameter(held)


@torch.no_grad()
def bias_written(layer: Layer, number: int) -> None:
    layer.down.bias.mul_(number)


def loaded(layer: Layer, number: int) -> None:
    layer.load_state_dict({name: number * value.detach() for name, value in layer.state_dict().items()})


CHANGES: dict[str, Change] = {
    "a buffer is written": written,
    "an attribute is written": attribute_written,
    "a global is written": global_written,
    "a buffer is replaced": replaced,
    "a buffer gets other memory": memory_replaced,
    "a parameter is replaced": bias_replaced,
    "a parameter is written": bias_written,
    "a state is loaded": loaded,
}


def said(run: Callable[[], torch.Tensor]) -> str:
    try:
        found = run()
    except RefinementError as error:
        (finding,) = error.report.findings
        return f"{error.report.verdict.value} {finding.code}: {finding.message}"
    return f"ran: {found.sum():.3f}"


def compiled_once(model: nn.Module) -> Any:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="verify", options={"inner": "eager"})
    compiled(torch.ones(4, 8))
    return compiled


class Headed(nn.Module):
    """Its head is a graph behind a graph break, of which nothing is asked."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.layer, self.head = parallel(Layer(), mesh), nn.Linear(8, 4)
        self.register_buffer("factor", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return self.head(y) * self.factor


def behind_a_break(mesh: DeviceMesh, number: int) -> str:
    torch.manual_seed(0)
    model = Headed(mesh)
    compiled = compiled_once(model)
    model.factor.fill_(number)
    return said(lambda: compiled(torch.ones(4, 8)))


def outcome(mesh: DeviceMesh, change: Change, number: int) -> str:
    OF_MODULE.fill_(1.0)
    model = parallel(Layer(), mesh)
    compiled = compiled_once(model)
    change(model, number)
    return said(lambda: compiled(torch.ones(4, 8)))


def layers(mesh: DeviceMesh, number: int) -> str:
    """The last of three layers, which runs the graph of the second, holds other numbers from the beginning."""
    torch._dynamo.reset()
    model = nn.Sequential(*(parallel(Layer(), mesh) for _ in range(3)))
    model[2].scale.mul_(number)
    for layer in model:
        layer.compile(backend="verify", options={"inner": "eager"})
    return said(lambda: model(torch.ones(4, 8)))


def alone(mesh: DeviceMesh, rank: int) -> str:
    """Rank 1 changes its buffer, and rank 0 is in the graph's collective meanwhile."""
    OF_MODULE.fill_(1.0)
    model = parallel(Layer(), mesh)
    compiled = compiled_once(model)
    if rank == 1:
        model.scale.mul_(2)
        os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"] = "1"
    found = said(lambda: compiled(torch.ones(4, 8)))
    if rank == 1:
        model(torch.ones(4, 8))
        del os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"]
    return found


def received(mesh: DeviceMesh, rank: int) -> str:
    """Rank 0 changes a parameter and a buffer, and sends them to rank 1."""
    model = parallel(Layer(), mesh)
    compiled = compiled_once(model)
    for tensor in (model.down.bias.to_local(), model.scale):
        if rank == 0:
            with torch.no_grad():
                tensor.mul_(3)
        dist.broadcast(tensor.data, 0)
    return said(lambda: compiled(torch.ones(4, 8)))


def often(mesh: DeviceMesh) -> str:
    """A buffer that all ranks change alike before each call: how often they speak, and what they say in the end."""
    model = parallel(Layer(), mesh)
    compiled = compiled_once(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(held_again.MOST_COMPARISONS + 3):
            model.scale.fill_(step)
            compiled(torch.ones(4, 8))
    return "; ".join(str(item.message) for item in caught if "between calls" in str(item.message))


def seldom(mesh: DeviceMesh, rank: int) -> str:
    """The same, and rank 1 writes another number once, of which the ranks do not speak at that call."""
    model = parallel(Layer(), mesh)
    compiled = compiled_once(model)
    for step in range(1, 4 * held_again.MOST_COMPARISONS):
        model.scale.add_(2 if step == held_again.MOST_COMPARISONS + 2 and rank else 1)
        found = said(lambda: compiled(torch.ones(4, 8)))
        if not found.startswith("ran: "):
            return f"call {step}: {found}"
    return found


@contextlib.contextmanager
def counted() -> Any:
    begun: list[str] = []
    begin = held_again.Channel.begin
    held_again.Channel.begin = lambda self, frame: (begun.append(frame), begin(self, frame))[1]  # type: ignore[method-assign]
    try:
        yield begun
    finally:
        held_again.Channel.begin = begin  # type: ignore[method-assign]


def trained(mesh: DeviceMesh, kind: type[Layer]) -> str:
    """What is said in steps that change parameters, and in which the graph itself changes its buffer.

    Afterwards the contents of the parameters can be exchanged, as it is done for another dtype.
    """
    model = parallel(kind(), mesh)
    compiled = compiled_once(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with counted() as begun:
        for _ in range(3):
            compiled(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return f"{len(begun)} times, {model.to(torch.float64).scale[0]:.4f}"


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for name, change in CHANGES.items():
        answers[f"right {name}"] = outcome(mesh, change, 3)
        answers[f"wrong {name}"] = outcome(mesh, change, 2 + rank)
    OF_MODULE.fill_(1.0)
    answers["right layers"], answers["wrong layers"] = layers(mesh, 3), layers(mesh, 2 + rank)
    answers["right break"], answers["wrong break"] = behind_a_break(mesh, 3), behind_a_break(mesh, 2 + rank)
    answers["trained"], answers["counting"] = trained(mesh, Layer), trained(mesh, Counting)
    answers["often"], answers["seldom"] = often(mesh), seldom(mesh, rank)
    answers["received"] = received(mesh, rank)
    answers["alone"] = alone(mesh, rank)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank, dt.timedelta(seconds=60))
