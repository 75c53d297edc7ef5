"""Kinds of parallel programs on two gloo processes, each verified, compiled, run and compared with one device.

    kinds_of_programs.py INNER

Exits with 0 where every rank's result and every gradient equal those of the single-device model.
"""

import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.forked import start_ranks

RANKS = 2
ROWS, WIDTH, WORDS = 4, 8, 16
Compile = Callable[..., Callable[..., torch.Tensor]]
Compared = Iterator[tuple[str, torch.Tensor, torch.Tensor]]


def whole(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value.full_tensor() if isinstance(value, DTensor) else value


def reduced(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    total = value.clone()
    dist.all_reduce(total)
    return total


def part(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    return value.chunk(RANKS, dim)[dist.get_rank()]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


# ------------------------------------------------------------------------------------------- programs that read ranks


class ReduceFromRanks(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        gathered = x.new_empty(RANKS * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous())
        return gathered

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        rows = gradient.shape[0] // RANKS
        return gradient.narrow(0, dist.get_rank() * rows, rows)


class VocabularyOfRank(nn.Module):
    """Each rank holds the rows of its own words."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(part(weight.detach()).clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = self.weight.shape[0]
        local = tokens - dist.get_rank() * words
        elsewhere = (local < 0) | (local >= words)
        rows = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return ReduceFromRanks.apply(rows.masked_fill(elsewhere[..., None], 0.0))


def vocabulary(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single = nn.Embedding(WORDS, WIDTH)
    tokens = torch.randint(WORDS, (3, 5))
    parallel = VocabularyOfRank(single.weight)
    result = compiled(parallel, spec=single, mesh=mesh, param_placements={"weight": (Shard(0),)})(tokens)
    result.square().sum().backward()
    expected = single(tokens)
    expected.square().sum().backward()
    yield "result", result, expected
    yield "weight", whole(parallel.weight.grad), part(whole(single.weight.grad))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0])
        future = positions[None, :] > positions[:, None]
        scores = (self.q(x) @ self.k(x).transpose(0, 1)).masked_fill(future, float("-inf"))
        return torch.softmax(scores, -1) @ self.v(x)


class AttentionOfPart(Attention):
    """Each rank holds a part of the positions; keys and values are gathered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.arange(x.shape[0]) + dist.get_rank() * x.shape[0]
        future = torch.arange(RANKS * x.shape[0])[None, :] > own[:, None]
        keys = torch.distributed._functional_collectives.all_gather_tensor_autograd(self.k(x), 0, dist.group.WORLD)
        values = torch.distributed._functional_collectives.all_gather_tensor_autograd(self.v(x), 0, dist.group.WORLD)
        scores = (self.q(x) @ keys.transpose(0, 1)).masked_fill(future, float("-inf"))
        return torch.softmax(scores, -1) @ values


def sequence_parallel_attention(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, parallel = Attention(), AttentionOfPart()
    parallel.load_state_dict(single.state_dict())
    x = torch.randn(2 * ROWS, WIDTH)
    result = compiled(
        parallel,
        spec=single,
        mesh=mesh,
        in_placements={"x": (Shard(0),)},
        grad_placements={"*": (Partial(),)},
    )(part(x))
    result.square().sum().backward()
    expected = single(x)
    expected.square().sum().backward()
    yield "result", result, part(expected)
    for name, parameter in parallel.named_parameters():
        yield name, reduced(parameter.grad), whole(single.get_parameter(name).grad)


class SliceOfRank(nn.Module):
    """Each rank works on its own rows of what all ranks hold."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, rank = x.shape[0] // RANKS, dist.get_rank()
        return GatherRows.apply(self.inner(x[rank * rows : (rank + 1) * rows]))


class Whole(SliceOfRank):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def slice_by_rank(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, parallel = Whole(Perceptron()), SliceOfRank(Perceptron())
    parallel.load_state_dict(single.state_dict())
    x = torch.randn(2 * ROWS, WIDTH)
    result = compiled(parallel, spec=single, mesh=mesh, grad_placements={"*": (Partial(),)})(x)
    result.square().sum().backward()
    expected = single(x)
    expected.square().sum().backward()
    yield "result", result, expected
    for name, parameter in parallel.named_parameters():
        yield name, reduced(parameter.grad), whole(single.get_parameter(name).grad)


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class StageOfRank(Stages):
    """Each rank uses the parameters of its own stage."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        if dist.get_rank() == 0:
            dist.send(torch.tanh(self.first(x)), 1)
        else:
            hidden = torch.empty_like(x)
            dist.recv(hidden, 0)
            result = self.second(hidden)
        dist.broadcast(result, 1)
        return result


def stages_by_rank(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, parallel = Stages().requires_grad_(False), StageOfRank().requires_grad_(False)
    parallel.load_state_dict(single.state_dict())
    x = torch.randn(ROWS, WIDTH)
    yield "result", compiled(parallel, spec=single, mesh=mesh)(x), single(x)


# ------------------------------------------------------------------------------------------- torch's own parallelism


class Language(nn.Module):
    """Vocabulary-parallel embedding, sequence-parallel norm, column- and row-parallel layers, loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def tensor_parallel(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, parallel = Language(), Language()
    parallel.load_state_dict(single.state_dict())
    parallel = parallelize_module(parallel, mesh, PLAN)
    tokens, labels = torch.randint(WORDS, (3, 4)), torch.randint(WORDS, (3, 4))
    result = compiled(parallel, spec=single)(tokens, labels)
    result.backward()
    expected = single(tokens, labels)
    expected.backward()
    yield "loss", result, expected
    for name, parameter in parallel.named_parameters():
        yield name, whole(parameter.grad), whole(single.get_parameter(name).grad)


def data_parallel(_mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, replica = Perceptron(), Perceptron()
    replica.load_state_dict(single.state_dict())
    yield from _on_own_rows(single, replica, compiled(DistributedDataParallel(replica), spec=single))


def fully_sharded(mesh: DeviceMesh, compiled: Compile) -> Compared:
    single, sharded = Perceptron(), Perceptron()
    sharded.load_state_dict(single.state_dict())
    fully_shard(sharded, mesh=mesh)
    yield from _on_own_rows(single, sharded, compiled(sharded, spec=single, in_placements={"x": (Shard(0),)}))


def _on_own_rows(single: nn.Module, replica: nn.Module, call: Callable[..., torch.Tensor]) -> Compared:
    x = torch.randn(2 * ROWS, WIDTH)
    result = call(part(x))
    result.square().mean().backward()
    expected = single(x)
    expected.square().mean().backward()
    yield "result", result, part(expected)
    for name, parameter in replica.named_parameters():
        yield name, whole(parameter.grad), whole(single.get_parameter(name).grad)


KINDS = (
    vocabulary,
    sequence_parallel_attention,
    slice_by_rank,
    stages_by_rank,
    tensor_parallel,
    data_parallel,
    fully_sharded,
)


def rank_main(rank: int, store: str, inner: str, names: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("ranks",))

    def compiled(model: nn.Module, **options: Any) -> Any:
        return torch.compile(model, backend="verify", options={"inner": inner, **options})

    for kind in KINDS:
        if names and kind.__name__ not in names:
            continue
        torch.manual_seed(0)
        count = 0
        for name, actual, expected in kind(mesh, compiled):
            place = f"{kind.__name__} {name}"
            torch.testing.assert_close(actual, expected, msg=lambda text, place=place: f"{place}: {text}")
            count += 1
        if rank == 0:
            print(f"{kind.__name__}: {count} values equal", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        given = (str(pathlib.Path(folder) / "store"), sys.argv[1], tuple(sys.argv[2:]))
        start_ranks(rank_main, given, RANKS)
