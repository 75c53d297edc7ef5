"""Layers written by hand as Megatron writes them: local parameters, offsets by rank, collectives inside of autograd.

    python examples/megatron_layers.py          # verified for 4 ranks, in one process
    python examples/megatron_layers.py --bug    # refused: nobody adds the gradients of what all ranks read

Nothing here is a DTensor, so the tool is told how the parameters lie (``param_placements``), and it is given ``build``,
a function that makes the model of the rank that calls it, because the embedding's offset differs by rank.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard

import verifycompile
from verifycompile.testing import fake_mesh

DEGREE = 4
VOCABULARY, DIM = 32, 16


class CopyToRanks(torch.autograd.Function):
    """Every rank reads the value; each rank's gradient is a part of the sum, so backward adds them up."""

    @staticmethod
    def forward(ctx, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class CopyAndForget(torch.autograd.Function):
    """The bug: the forward pass is the same, and the gradient stays a part of the sum."""

    @staticmethod
    def forward(ctx, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class ReduceFromRanks(torch.autograd.Function):
    """Each rank holds a part of the sum, and gets all of it; the gradient passes as it is."""

    @staticmethod
    def forward(ctx, value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class ParallelEmbedding(nn.Module):
    """A rank holds some rows of the table; tokens of other ranks' rows give zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = VOCABULARY // dist.get_world_size()
        self.first = dist.get_rank() * self.rows
        self.weight = nn.Parameter(torch.randn(self.rows, DIM))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outside = (tokens < self.first) | (tokens >= self.first + self.rows)
        found = F.embedding((tokens - self.first).masked_fill(outside, 0), self.weight)
        return ReduceFromRanks.apply(found.masked_fill(outside.unsqueeze(-1), 0.0))


class ParallelFeedForward(nn.Module):
    """Columns of ``up`` and rows of ``down`` are divided among the ranks."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.copy = CopyAndForget if bug else CopyToRanks
        self.up = nn.Linear(DIM, 4 * DIM // dist.get_world_size())
        self.down = nn.Linear(4 * DIM // dist.get_world_size(), DIM, bias=False)
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.up(self.copy.apply(x)))
        return ReduceFromRanks.apply(self.down(hidden)) + self.bias


class Parallel(nn.Module):
    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.embedding, self.norm = ParallelEmbedding(), nn.LayerNorm(DIM)
        self.feed_forward = ParallelFeedForward(bug)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.feed_forward(self.norm(x))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM, bias=False)
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x))) + self.bias


class Single(nn.Module):
    """What is meant: the same model on one device. The names of its parameters are those of ``Parallel``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM)
        self.feed_forward = FeedForward()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.feed_forward(self.norm(x))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="forget the all-reduce of a gradient")
    arguments = parser.parse_args()
    with fake_mesh({"tp": DEGREE}) as mesh:
        report = verifycompile.verify(
            args=(torch.randint(VOCABULARY, (2, 8)),),
            build=lambda: Parallel(arguments.bug),
            spec=Single(),
            mesh=mesh,
            param_placements={
                "embedding.weight": Shard(0),
                "feed_forward.up.*": Shard(0),
                "feed_forward.down.weight": Shard(1),
            },
        )
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
