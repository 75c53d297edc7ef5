"""Optimizer steps: on DTensors, and with states sharded by hand. Each with the mistakes that are made in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from tests.soundness.plain import all_gather, all_reduce, reduce_scatter

Layout = tuple[Placement, ...]
WHOLE, ROWS, COLUMNS, SUM, MEAN = (Replicate(),), (Shard(0),), (Shard(1),), (Partial(),), (Partial("avg"),)


@dataclasses.dataclass(frozen=True)
class Update:
    """``program(mesh, mistake)`` gives the function that one rank runs; ``inputs`` are what it is called with.

    ``mistakes``: every one of them changes a number. ``layouts``: of the plain inputs, by name.
    """

    name: str
    spec: Callable[..., Any]
    program: Callable[[DeviceMesh, str], Callable[..., Any]]
    inputs: Callable[[DeviceMesh], Sequence[Any]]
    mistakes: tuple[str, ...]
    layouts: dict[str, Layout] = dataclasses.field(default_factory=dict)
    shape: tuple[int, ...] = (2,)


def tensors(mesh: DeviceMesh, *layouts: Layout, positive: bool = False) -> list[DTensor]:
    """One 8 by 4 DTensor for each layout."""
    draw = torch.rand if positive else torch.randn
    return [distribute_tensor(draw(8, 4), mesh, layout) for layout in layouts]


# ------------------------------------------------------------------------------------------------ on DTensors

LAYOUTS = (ROWS, COLUMNS, WHOLE)


def momentum(weights: list[Any], gradients: list[Any], buffers: list[Any], mistake: str = "") -> None:
    for position, (weight, gradient, buffer) in enumerate(zip(weights, gradients, buffers, strict=True)):
        decayed = position != (1 if mistake == "decay of another parameter" else 2)
        step = gradient + 0.01 * weight if decayed else gradient
        buffer.mul_(0.9).add_(step, alpha=0.8 if mistake == "damped" else 0.9)
        step = buffer if mistake == "no lookahead" else step + 0.9 * buffer
        weight.add_(step, alpha=0.1 if mistake == "maximize" else -0.1)


def adam(  # noqa: PLR0917 - the operands of an optimizer's step
    weights: list[Any], gradients: list[Any], first: list[Any], second: list[Any], step: Any, mistake: str = ""
) -> None:
    step.add_(1)
    counted = step - 1 if mistake == "bias correction of the step before" else step
    slow, fast = (0.9, 0.95) if mistake != "betas exchanged" else (0.95, 0.9)
    for weight, own, mean, square in zip(weights, gradients, first, second, strict=True):
        gradient = own + 0.01 * weight if mistake == "decay in the gradient" else own
        if mistake != "decay in the gradient":
            weight.mul_(1 - 0.1 * 0.01)
        if mistake == "decay twice":
            weight.mul_(1 - 0.1 * 0.01)
        mean.lerp_(gradient, 1 - slow)
        square.mul_(fast).addcmul_(gradient, gradient, value=1 - fast)
        corrected = square / (1 - fast**counted)
        root = (corrected + 1e-2).sqrt() if mistake == "eps inside the root" else corrected.sqrt() + 1e-2
        weight.addcdiv_(mean / (1 - slow**counted), root, value=-0.1)


def _on_tensors(function: Callable[..., None]) -> Callable[[DeviceMesh, str], Callable[..., None]]:
    def program(mesh: DeviceMesh, mistake: str) -> Callable[..., None]:
        if function is momentum:
            return lambda weights, gradients, buffers: momentum(weights, gradients, buffers, mistake)
        return lambda weights, gradients, first, second, step: adam(weights, gradients, first, second, step, mistake)

    return program


def _momentum(weights: list[Any], gradients: list[Any], buffers: list[Any]) -> None:
    momentum(weights, gradients, buffers)


def _adam(weights: list[Any], gradients: list[Any], first: list[Any], second: list[Any], step: Any) -> None:
    adam(weights, gradients, first, second, step)


# ------------------------------------------------------------------------------------------------ states by hand


def whole_adam(weight: Any, gradient: Any, mean: Any, square: Any) -> None:
    mean.lerp_(gradient, 0.1)
    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    weight.sub_(0.1 * mean / (square.sqrt() + 1e-3))


def sharded_states(mesh: DeviceMesh, mistake: str) -> Callable[..., None]:
    """ZeRO: each rank reduces and updates its own rows, then all rows are gathered."""

    def step(weight: Any, gradient: Any, mean: Any, square: Any) -> None:
        operation = "sum" if mistake == "gradient not averaged" else "avg"
        own = reduce_scatter(gradient, mesh, operation=operation)
        layout = COLUMNS if mistake == "other shard" else ROWS
        rows = DTensor.from_local(weight, mesh, WHOLE, run_check=False).redistribute(mesh, layout).to_local()
        mean.lerp_(own, 0.1)
        square.mul_(0.99).addcmul_(own, own, value=0.01)
        new = rows.reshape(own.shape) - 0.1 * mean / (square.sqrt() + 1e-3)
        if mistake == "own shard only":
            weight[: new.shape[0]] = new
        else:
            weight.copy_(all_gather(new, mesh))

    return step


def sharded_weights(mesh: DeviceMesh, mistake: str) -> Callable[..., None]:
    """ZeRO 3: the weight is kept in shards as well."""

    def step(weight: Any, gradient: Any, mean: Any, square: Any) -> None:
        own = reduce_scatter(gradient, mesh, operation="sum") / (1 if mistake == "gradient not averaged" else 2)
        mean.lerp_(gradient[: own.shape[0]] if mistake == "gradient not reduced" else own, 0.1)
        square.mul_(0.99).addcmul_(own, own, value=0.01)
        weight.sub_(0.1 * (own if mistake == "no momentum" else mean) / (square.sqrt() + 1e-3))

    return step


def whole_lamb(weight: Any, gradient: Any, mean: Any, square: Any) -> None:
    mean.lerp_(gradient, 0.1)
    square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    step = mean / (square.sqrt() + 1e-3) + 0.01 * weight
    size, change = weight.norm(), step.norm()
    trust = torch.where(size > 0, torch.where(change > 0, size / change, 1.0), 1.0)
    weight.sub_(0.1 * trust * step)


def sharded_lamb(mesh: DeviceMesh, mistake: str) -> Callable[..., None]:
    """LAMB: the trust ratio is that of the whole weight, whose squares the ranks add."""

    def step(weight: Any, gradient: Any, mean: Any, square: Any) -> None:
        own = reduce_scatter(gradient, mesh, operation="avg")
        mean.lerp_(own, 0.1)
        square.mul_(0.99).addcmul_(own, own, value=0.01)
        change = mean / (square.sqrt() + 1e-3) + 0.01 * weight
        squares = torch.stack([weight.pow(2).sum(), change.pow(2).sum()])
        if mistake != "norms of the own rows":
            squares = all_reduce(squares, mesh)
        size, length = (squares if mistake == "squares" else squares.sqrt()).unbind()
        trust = length / size if mistake == "inverse" else size / length
        weight.sub_(torch.where((size == 0) | (length <= 0), 0.1, 0.1 * trust) * change)

    return step


UPDATES = (
    Update(
        "momentum",
        _momentum,
        _on_tensors(momentum),
        lambda mesh: (tensors(mesh, *LAYOUTS), tensors(mesh, *LAYOUTS), tensors(mesh, *LAYOUTS)),
        ("decay of another parameter", "damped", "no lookahead", "maximize"),
    ),
    Update(
        "adam",
        _adam,
        _on_tensors(adam),
        lambda mesh: (
            *(tensors(mesh, *LAYOUTS) for _ in range(3)),
            tensors(mesh, *LAYOUTS, positive=True),
            torch.tensor(3.0),
        ),
        (
            "bias correction of the step before", "betas exchanged", "decay in the gradient", "decay twice",
            "eps inside the root",
        ),
    ),
    Update(
        "sharded states",
        whole_adam,
        sharded_states,
        lambda mesh: (torch.randn(8, 4), torch.randn(8, 4), torch.randn(4, 4), torch.rand(4, 4)),
        ("gradient not averaged", "other shard", "own shard only"),
        {"weight": WHOLE, "gradient": MEAN, "mean": ROWS, "square": ROWS},
    ),
    Update(
        "sharded weights",
        whole_adam,
        sharded_weights,
        lambda mesh: (torch.randn(4, 4), torch.randn(8, 4), torch.randn(4, 4), torch.rand(4, 4)),
        ("gradient not averaged", "gradient not reduced", "no momentum"),
        {"weight": ROWS, "gradient": MEAN, "mean": ROWS, "square": ROWS},
    ),
    Update(
        "trust ratio",
        whole_lamb,
        sharded_lamb,
        lambda mesh: (torch.randn(4, 4), torch.randn(8, 4), torch.randn(4, 4), torch.rand(4, 4)),
        ("norms of the own rows", "squares", "inverse"),
        {"weight": ROWS, "gradient": MEAN, "mean": ROWS, "square": ROWS},
    ),
)  # fmt: skip
