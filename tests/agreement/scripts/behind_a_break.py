"""Code that takes what a compiled graph before it returns, on two gloo processes; prints what becomes of it, as JSON."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from tests.agreement.asked_on_two_ranks import tell
from verifycompile import RefinementError

After = Callable[["Model", torch.Tensor], Any]


class Model(nn.Module):
    def __init__(self, after: After, number: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 4)
        self.after, self.number = after, number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        torch._dynamo.graph_break()
        return self.after(self, y)


def head(model: Model, y: torch.Tensor) -> torch.Tensor:
    return model.head(y)


def scaled(model: Model, y: torch.Tensor) -> torch.Tensor:
    return model.head(y) * model.number


def branched(model: Model, y: torch.Tensor) -> torch.Tensor:
    return model.head(y) if model.number == 1 else model.head(y).relu()


def broken_again(model: Model, y: torch.Tensor) -> torch.Tensor:
    z = model.head(y)
    torch._dynamo.graph_break()
    return z * model.number


def recomputed(model: Model, y: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.head, y, use_reentrant=False)


def other_weights(model: Model, rank: int) -> None:
    model.head.weight.data.mul_(1 + rank)


def hooked(model: Model, rank: int) -> None:
    model.head.weight.register_hook(lambda gradient: gradient * (1 + rank))


def frozen(model: Model, rank: int) -> None:
    model.head.weight.requires_grad_(rank == 0)


class Prepared(Model):
    """A graph break lies before what is parallel; what a rank does there is no part of a parallel program."""

    def __init__(self, number: int, weight: int) -> None:
        super().__init__(head, number)
        self.register_buffer("weight", torch.full((8,), float(weight)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) * self.number + self.weight
        torch._dynamo.graph_break()
        return self.down(torch.relu(self.up(x)))


class Logging(Model):
    """Rank 0 alone computes what it writes to its log."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x)))
        torch._dynamo.graph_break()
        if self.number == 0:
            logged(y)
        return y


def logged(y: torch.Tensor) -> None:
    z = y.detach().abs() * 2
    torch._dynamo.graph_break()
    z.add_(1)


class Pieces(nn.Module):
    """Squares of a rank's own rows, added up: rank 0 has one piece of them, rank 1 two, or each has a stretch."""

    def __init__(self, rank: int, group: Any, *, in_one: bool) -> None:
        super().__init__()
        self.rank, self.group, self.in_one = rank, group, in_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.in_one or self.rank == 0:
            y = x[3 * self.rank : 3 * self.rank + 3].square().sum(0)
        else:
            y = x[3:4].square().sum(0) + x[4:].square().sum(0)
        return y if self.group is None else funcol.all_reduce(y, "sum", self.group)


def squares(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(0)


def taken(mesh: DeviceMesh, rank: int, *, in_one: bool, reduced: bool) -> str:
    """What becomes of a compiled function that takes the result of another one, which was verified."""
    torch._dynamo.reset()
    pieces = Pieces(rank, mesh if reduced else None, in_one=in_one)
    options: Any = {"inner": "eager", "mesh": mesh, "spec": squares}
    first = torch.compile(pieces, backend="verify", options=options)
    then = torch.compile(lambda y: torch.tanh(y), backend="verify", options={"inner": "eager"})
    x = torch.arange(48.0).view(6, 8) / 50
    try:
        found = then(first(x))
    except RefinementError as error:
        (finding,) = error.report.findings
        return f"{error.report.verdict.value} {finding.code}: {finding.message}"
    return f"ran: {(found - torch.tanh(squares(x))).abs().max():.3f}"


RIGHT: dict[str, After] = {
    "head": head,
    "scaled": scaled,
    "branched": branched,
    "broken again": broken_again,
    "recomputed": recomputed,
}
WRONG: dict[str, tuple[After, Callable[[Model, int], None] | None]] = {
    "scaled": (scaled, None),
    "branched": (branched, None),
    "broken again": (broken_again, None),
    "other weights": (head, other_weights),
    "hooked": (head, hooked),
    "frozen": (head, frozen),
}


def outcome(mesh: DeviceMesh, after: After, number: int, change: Callable[[Model], None] | None = None) -> str:
    return outcome_of(Model(after, number), mesh, change)


def outcome_of(model: Model, mesh: DeviceMesh, change: Callable[[Model], None] | None = None) -> str:
    torch._dynamo.reset()
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if change is not None:
        change(model)
    compiled = torch.compile(model, backend="verify", options={"inner": "eager"})
    try:
        compiled(torch.ones(4, 8)).sum().backward()
    except RefinementError as error:
        (finding,) = error.report.findings
        return f"{error.report.verdict.value} {finding.code}: {finding.message}"
    gradient = model.head.weight.grad
    return f"ran: {0 if gradient is None else gradient.sum():.3f}"


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    answers: dict[str, Any] = {f"right {name}": outcome(mesh, after, 1) for name, after in RIGHT.items()}
    for name, (after, change) in WRONG.items():
        number = 1 if change else 1 + rank
        answers[f"wrong {name}"] = outcome(mesh, after, number, change and (lambda model, f=change: f(model, rank)))
    answers["right before"] = outcome_of(Prepared(2, 3), mesh)
    answers["number before"] = outcome_of(Prepared(2 + rank, 3), mesh)
    answers["buffer before"] = outcome_of(Prepared(2, 3 + rank), mesh)
    for name, in_one in (("in one piece", True), ("in pieces", False)):
        answers[f"sum {name}"] = taken(mesh, rank, in_one=in_one, reduced=True)
        answers[f"part {name}"] = taken(mesh, rank, in_one=in_one, reduced=False)
    if rank == 0:
        os.environ["VERIFYCOMPILE_RANKS_TIMEOUT"] = "1"
    answers["logging"] = outcome_of(Logging(head, rank), mesh)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank)
