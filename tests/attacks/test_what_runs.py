"""What was verified runs as it was verified, with the results and gradients of one device.

Inductor: ``tests/backends/test_two_processes.py``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from tests.attacks.jobs import ROWS, WHOLE, Job, Programs, failures, outcomes

PROGRAMS = Programs()
VOCABULARY, WIDTH = 8, 4
WAYS = ("aot_eager",)
EVERY_WAY = ("aot_eager", "eager")


class Reduce(torch.autograd.Function):
    """The sum over the ranks; its gradient passes."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Copy(torch.autograd.Function):
    """The value; its gradient is summed over the ranks."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


def table() -> torch.Tensor:
    return torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(1))


def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(0))


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(table())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.weight)


class VocabularyParallel(nn.Module):
    """Its first row is a number of the constructor; wrongly, one too many on every rank but the first."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.per = VOCABULARY // size
        self.start = rank * self.per + rank * wrong
        self.end = self.start + self.per
        self.weight = nn.Parameter(table()[rank * self.per : (rank + 1) * self.per].clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens < self.start) | (tokens >= self.end)
        local = (tokens - self.start).clamp(0, self.per - 1)
        return Reduce.apply(F.embedding(local, self.weight).masked_fill(mask[..., None], 0.0))


def _lookup(wrong: int) -> Any:
    return lambda mesh: Job(
        lambda: VocabularyParallel(wrong), Lookup(), (tokens(),), {"tokens": WHOLE}, {"param_placements": {"weight": (Shard(0),)}}, backward=True
    )


PROGRAMS.add("right_vocabulary_parallel", _lookup(0), right=True, ways=EVERY_WAY)
PROGRAMS.add("wrong_vocabulary_parallel", _lookup(1), right=False, ways=WAYS)


class Attention(nn.Module):
    """Queries of this rank's rows, keys of all; ``start`` is where the rows begin."""

    def __init__(self, mesh: DeviceMesh | None, factor: int = 1) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mesh, self.factor = mesh, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, start = self.q(x), self.k(x), 0
        if self.mesh is not None:
            k = collectives.all_gather_tensor(k, 0, self.mesh)
            start = dist.get_rank() * x.shape[0] * self.factor
        scores = q @ k.t()
        later = torch.arange(k.shape[0])[None] > (torch.arange(q.shape[0]) + start)[:, None]
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ k


def _attention(factor: int) -> Any:
    return lambda mesh: Job(
        lambda: Attention(mesh, factor).requires_grad_(False),
        Attention(None).requires_grad_(False),
        (torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(3)),),
        {"x": ROWS},
        {"out_placements": {"output.0": ROWS}},
    )


PROGRAMS.add("right_attention_of_a_sequence", _attention(1), right=True, ways=WAYS)
PROGRAMS.add("wrong_attention_of_a_sequence", _attention(0), right=False, ways=WAYS)


@PROGRAMS.right(*WAYS)
def right_slice_by_rank(mesh: DeviceMesh) -> Job:
    def forward(x: torch.Tensor) -> torch.Tensor:
        start = dist.get_rank() * 3
        return torch.tanh(x[start : start + 3])

    return Job(lambda: forward, lambda x: torch.tanh(x), (torch.randn(6, 3),), {"x": WHOLE}, {"out_placements": {"output.0": ROWS}})


@PROGRAMS.wrong("aot_eager")
def wrong_slice_by_rank(mesh: DeviceMesh) -> Job:
    def forward(x: torch.Tensor) -> torch.Tensor:
        start = dist.get_rank() * 2
        return torch.tanh(x[start : start + 3])

    return Job(lambda: forward, lambda x: torch.tanh(x), (torch.randn(6, 3),), {"x": WHOLE}, {"out_placements": {"output.0": ROWS}})


@PROGRAMS.right(*WAYS)
def right_chunk_by_the_mesh(mesh: DeviceMesh) -> Job:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.chunk(mesh.size(), 1)[mesh.get_local_rank()])

    return Job(lambda: forward, lambda x: torch.relu(x), (torch.randn(4, 6),), {"x": WHOLE}, {"out_placements": {"output.0": (Shard(1),)}})


@PROGRAMS.right(*WAYS)
def right_branch_by_rank(mesh: DeviceMesh) -> Job:
    def forward(x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 0:
            return torch.tanh(x) * 2
        y = torch.tanh(x)
        return y + y

    return Job(lambda: forward, lambda x: torch.tanh(x) * 2, (torch.randn(4, 6),), {"x": ROWS}, {"out_placements": {"output.0": ROWS}})


@PROGRAMS.right(*WAYS)
def right_positions(mesh: DeviceMesh) -> Job:
    start = dist.get_rank() * 2

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.arange(x.shape[0]) + start)[:, None]

    return Job(lambda: forward, lambda x: x + torch.arange(x.shape[0])[:, None], (torch.randn(4, 6),), {"x": ROWS}, {"out_placements": {"output.0": ROWS}})


class Perceptron(nn.Module):
    """Column- and row-parallel by hand, with the operators of Megatron-LM."""

    def __init__(self, parallel: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        up, down = torch.randn(WIDTH, 8, generator=generator), torch.randn(8, WIDTH, generator=generator)
        if parallel:
            rank, size = dist.get_rank(), dist.get_world_size()
            up, down = up.chunk(size, 1)[rank], down.chunk(size, 0)[rank]
        self.up, self.down, self.parallel = nn.Parameter(up.clone()), nn.Parameter(down.clone()), parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.parallel:
            return torch.tanh(x @ self.up) @ self.down
        return Reduce.apply(torch.tanh(Copy.apply(x) @ self.up) @ self.down)


@PROGRAMS.right(*WAYS)
def right_perceptron(mesh: DeviceMesh) -> Job:
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5), requires_grad=True)
    places = {"up": (Shard(1),), "down": (Shard(0),)}
    return Job(lambda: Perceptron(True), Perceptron(False), (x,), {"x": WHOLE}, {"param_placements": places}, backward=True, given_args=(x.detach().clone().requires_grad_(),))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.embedding, self.norm = nn.Embedding(VOCABULARY, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return (x + self.down(F.gelu(self.up(self.norm(x))))).square()


@PROGRAMS.right(*EVERY_WAY)
def right_dtensors(mesh: DeviceMesh) -> Job:
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return Job(lambda: parallelize_module(Block(), mesh, plan), Block(), (tokens(),), mesh=False, placed=False, backward=True)


def test_programs() -> None:
    found = outcomes(__file__)
    assert failures(PROGRAMS, found) == []
    # Everything right was run, not only verified.
    assert all(outcome.equal for (name, _), outcome in found.items() if PROGRAMS.found[name].right)
