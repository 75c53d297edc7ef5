"""Programs of two gloo processes; prints what each rank is told of each, as JSON: {question: [rank 0, rank 1]}."""

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.agreement.asked_on_two_ranks import tell


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return funcol.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class RowsOfRank(nn.Module):
    """An embedding of which each rank holds 8 rows, from ``start`` on."""

    def __init__(self, start: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.start, self.group = start, group

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        others = (tokens < self.start) | (tokens >= self.start + 8)
        rows = F.embedding((tokens - self.start).masked_fill(others, 0), self.weight)
        return Sum.apply(rows.masked_fill(others.unsqueeze(-1), 0.0), self.group)


class Perceptron(nn.Module):
    def __init__(self, activation: Any = F.relu, scale: float = 1.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.activation = activation
        self.register_buffer("scale", torch.full((8,), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x))) * self.scale


class Telling(Perceptron):
    """Returns a number beside its result."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": super().forward(x), "number": self.number}


class Pointwise(nn.Module):
    """No parameters, no collectives."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x) * 2


def parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


Question = tuple[str, nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]


def questions(rank: int, mesh: DeviceMesh) -> Iterator[Question]:
    rows = {"spec": nn.Embedding(16, 4), "mesh": mesh, "param_placements": {"weight": (Shard(0),)}}
    tokens, x = torch.arange(16).reshape(4, 4), torch.ones(4, 8)
    group = mesh.get_group()
    yield "rows of the rank", RowsOfRank(8 * rank, group), (tokens,), rows
    yield "rows of no rank", RowsOfRank(4 * rank, group), (tokens,), rows
    yield "alike", parallel(Perceptron(), mesh), (x,), {}
    by_rank = F.relu if rank == 0 else F.gelu
    yield "activation", parallel(Perceptron(by_rank), mesh), (x,), {"spec": Perceptron()}
    yield "activation without a spec", parallel(Perceptron(by_rank), mesh), (x,), {}
    for name, number in (("alike", 3), ("of each rank", 3 + rank)):
        telling = parallel(Telling(), mesh)
        telling.number = number
        yield f"a number {name}", telling, (x,), {}
    yield "buffer", parallel(Perceptron(scale=1.0 + rank), mesh), (x,), {}
    replicas = parallel(Perceptron(), mesh)
    replicas.down.bias.to_local().detach().add_(rank)
    yield "replicas of a DTensor", replicas, (x,), {"spec": Perceptron()}
    for name, moved in (("alike", 0), ("of each rank", rank)):
        positions = DTensor.from_local(torch.arange(4) + moved, mesh, (Replicate(),), run_check=False)
        table = nn.Sequential(nn.Embedding(16, 4))
        plan = {"0": RowwiseParallel(input_layouts=Replicate())}
        yield f"a DTensor of tokens {name}", parallelize_module(table, mesh, plan), (positions,), {}
    whole = (Replicate(),)
    placed = {"spec": Pointwise(F.relu), "in_placements": {"x": whole}, "out_placements": {"output.0": whole}}
    for name, chosen in (("alike", F.relu), ("differing", by_rank)):
        yield f"replicated {name}", Pointwise(chosen), (x,), placed
        yield f"replicated {name} on a mesh", Pointwise(chosen), (x,), {"spec": Pointwise(F.relu), "mesh": mesh}
    yield "failing", parallel(Perceptron(), mesh), (torch.ones(4, 8 - rank),), {}
    yield "alike again", parallel(Perceptron(), mesh), (x,), {}
    if rank == 0:
        os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"] = "1"
        yield "alone", parallel(Perceptron(F.silu), mesh), (x,), {}
    else:
        parallel(Perceptron(F.silu), mesh)


def answer(model: nn.Module, args: tuple[torch.Tensor, ...], options: dict[str, Any]) -> dict[str, Any]:
    try:
        report = verifycompile.verify(model, args, **options)
    except verifycompile.UsageError as error:
        return {"verdict": "usage error", "text": str(error)}
    findings = [
        {"code": f.code, "message": f.message, "line": f.location and f.location.line, "notes": f.notes}
        for f in report.findings
    ]
    text = "\n".join(line for line in str(report).splitlines() if " = seconds: " not in line)
    return {"verdict": report.verdict.value, "findings": findings, "text": text, "differing": report.differing_ranks}


def compiled(model: nn.Module, x: torch.Tensor, **options: Any) -> dict[str, Any]:
    compiled = torch.compile(model, backend="verify", options={"inner": "aot_eager", "spec": Perceptron(), **options})
    try:
        compiled(x)
    except verifycompile.RefinementError as error:
        return {"verdict": error.report.verdict.value, "text": str(error)}
    return {"verdict": "ran", "text": ""}


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for activation in (F.relu, F.relu if rank == 0 else F.gelu):
        answers[f"compiled {len(answers)}"] = compiled(parallel(Perceptron(activation), mesh), torch.ones(4, 8))
        torch._dynamo.reset()
    answers["warned on one rank"] = compiled(
        parallel(Perceptron(), mesh), torch.ones(4, 8), on_unproved=("error", "warn")[rank]
    )
    torch._dynamo.reset()
    scaled = Perceptron(scale=1.0 + rank)  # unproved
    answers["warned on all ranks"] = compiled(parallel(scaled, mesh), torch.ones(4, 8), on_unproved="warn")
    for name, model, args, options in questions(rank, mesh):
        torch._dynamo.reset()
        answers[name] = answer(model, args, options)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank)
