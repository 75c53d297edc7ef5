"""Programs captured rank by rank with ``make_fx``, with the in-place collectives of ``torch.distributed``.

The layers are written as Megatron writes them: ``autograd.Function`` pairs around in-place collectives, buffers that a
gather writes into, offsets computed from the rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.fx
import torch.nn.functional as F
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import fake_world

Arguments = Mapping[str, torch.Tensor]


def trace(function: Callable[..., Any], arguments: Arguments) -> torch.fx.GraphModule:
    """The ATen graph of ``function`` called with ``arguments`` by name; placeholders keep the names."""
    names = list(arguments)

    def call(*values: torch.Tensor) -> Any:
        return function(**dict(zip(names, values, strict=True)))

    graph = make_fx(call, tracing_mode="fake")(*arguments.values())
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), names, strict=True):
        node.name = name
        node.target = name
    graph.recompile()
    return graph


def trace_ranks(
    function: Callable[..., Any], ranks: int, arguments: Callable[[int], Arguments]
) -> list[torch.fx.GraphModule]:
    """One graph a rank. ``function`` may ask ``dist.get_rank()``; ``arguments``: what the rank passes."""
    graphs: list[torch.fx.GraphModule] = []
    for rank in range(ranks):
        with fake_world(ranks, rank):
            graphs.append(trace(function, arguments(rank)))
    return graphs


class CopyToRanks(torch.autograd.Function):
    """Identity; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class CopyWithoutReduction(torch.autograd.Function):
    """The mistake: the gradient stays partial."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class ReduceFromRanks(torch.autograd.Function):
    """Sum over the ranks; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class GatherRows(torch.autograd.Function):
    """All-gather into a buffer; the gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty(value.shape[0] * dist.get_world_size(), *value.shape[1:])
        dist.all_gather_single(buffer, value.contiguous())
        return buffer

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        part = torch.empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_single(part, gradient.contiguous())
        return part


class ScatterRows(torch.autograd.Function):
    """Reduce-scatter; the gradient is all-gathered."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        part = torch.empty(value.shape[0] // dist.get_world_size(), *value.shape[1:])
        dist.reduce_scatter_single(part, value.contiguous())
        return part

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.cat(parts)


def with_gradients(forward: Callable[..., torch.Tensor], over: Sequence[str]) -> Callable[..., Any]:
    """``forward`` and the gradients of the named arguments under the cotangent ``tangent``."""

    def run(tangent: torch.Tensor, **arguments: torch.Tensor) -> list[torch.Tensor]:
        leaves = {name: value.detach().requires_grad_(name in over) for name, value in arguments.items()}
        with torch.enable_grad():
            output = forward(**leaves)
            gradients = torch.autograd.grad(output, [leaves[name] for name in over], tangent)
        return [output.detach(), *gradients]

    return run


def spec_mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ up.t()) @ down.t()


def rank_mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return ReduceFromRanks.apply(F.gelu(CopyToRanks.apply(x) @ up.t()) @ down.t())  # type: ignore[no-any-return]


def sequence_mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return ScatterRows.apply(F.gelu(GatherRows.apply(x) @ up.t()) @ down.t())  # type: ignore[no-any-return]


def spec_embedding(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(tokens, table)


def rank_embedding(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A shard of the vocabulary: rows of other ranks are masked out and the ranks' results added."""
    start = dist.get_rank() * table.shape[0]
    outside = (tokens < start) | (tokens >= start + table.shape[0])
    local = tokens - start
    local = local.masked_fill(outside, 0)
    rows = F.embedding(local, table)
    rows = rows.masked_fill(outside.unsqueeze(-1), 0.0)
    return ReduceFromRanks.apply(rows)  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class RankCase:
    """A spec, what the ranks run, and how their inputs lie. ``layouts``: names that are not replicated."""

    name: str
    spec: Callable[..., Any]
    ranks: Callable[..., Any]
    arguments: Mapping[str, tuple[int, ...]]
    layouts: Mapping[str, tuple[Placement, ...]]
    outputs: Mapping[str, tuple[Placement, ...]] = dataclasses.field(default_factory=dict[str, tuple[Placement, ...]])
    integers: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    def whole(self) -> Arguments:
        return {name: self._make(name, shape) for name, shape in self.arguments.items()}

    def part(self, rank: int, ranks: int) -> Arguments:
        parts: dict[str, torch.Tensor] = {}
        for name, value in self.whole().items():
            (placement,) = self.layouts.get(name, (Replicate(),))
            part = value.chunk(ranks, placement.dim)[rank] if isinstance(placement, Shard) else value
            parts[name] = part.contiguous()
        return parts

    def _make(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name in self.integers:
            return torch.randint(self.integers[name], shape)
        return torch.randn(shape)


_MLP = {"tangent": (4, 8), "x": (4, 8), "up": (16, 8), "down": (8, 16)}
_ROWS, _COLUMNS = (Shard(0),), (Shard(1),)

CASES = (
    RankCase(
        "mlp",
        with_gradients(spec_mlp, ("x", "up", "down")),
        with_gradients(rank_mlp, ("x", "up", "down")),
        _MLP,
        {"up": _ROWS, "down": _COLUMNS},
        {"output.0": (Replicate(),), "output.1": (Replicate(),), "output.2": _ROWS, "output.3": _COLUMNS},
    ),
    RankCase(
        "sequence parallel mlp",
        with_gradients(spec_mlp, ("x", "up", "down")),
        with_gradients(sequence_mlp, ("x", "up", "down")),
        _MLP,
        {"up": _ROWS, "down": _COLUMNS, "x": _ROWS, "tangent": _ROWS},
        {"output.0": _ROWS, "output.1": _ROWS, "output.2": _ROWS, "output.3": _COLUMNS},
    ),
    RankCase(
        "vocabulary parallel embedding",
        with_gradients(spec_embedding, ("table",)),
        with_gradients(rank_embedding, ("table",)),
        {"tangent": (3, 5, 8), "tokens": (3, 5), "table": (12, 8)},
        {"table": _ROWS},
        {"output.0": (Replicate(),), "output.1": _ROWS},
        {"tokens": 12},
    ),
)
