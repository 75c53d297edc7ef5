"""Compiled optimizers of parameters that two gloo processes hold alike; prints what becomes of their steps, as JSON."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from tests.agreement.asked_on_two_ranks import tell
from tests.agreement.scripts.changed_later import Layer, parallel
from verifycompile import RefinementError

INNER: Any = {"inner": "eager"}


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().mean()


class Headed(nn.Module):
    """Its head is no part of the plan: plain parameters that all ranks hold."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.layer, self.head = parallel(Layer(), mesh), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)).square().mean()


def said(run: Callable[[], Any]) -> str:
    try:
        run()
    except RefinementError as error:
        (finding,) = error.report.findings
        return f"{error.report.verdict.value} {finding.code}: {finding.message}"
    return "ran"


def stepped(
    model: nn.Module,
    optimizer: Optimizer,
    x: torch.Tensor,
    change: Callable[[Optimizer], None] | None = None,
    *,
    by_hand: bool = False,
    compiles_model: bool = True,
) -> list[str]:
    """Two steps, the last of them after ``change``. ``by_hand``: by a function of the user, not the optimizer's own."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="verify", options=INNER) if compiles_model else model
    step = torch.compile(_by_hand(optimizer) if by_hand else optimizer.step, backend="verify", options=INNER)
    told: list[str] = []
    for number in range(2):
        compiled(x).backward()
        if number and change is not None:
            change(optimizer)
        told.append(said(step))
        optimizer.zero_grad()
    return told


def _by_hand(optimizer: Optimizer) -> Callable[[], None]:
    group = optimizer.param_groups[0]

    @torch.no_grad()
    def step() -> None:
        torch._foreach_add_([p.data for p in group["params"]], [p.grad for p in group["params"]], alpha=-group["lr"])

    return step


def scheduled(number: float) -> Callable[[Optimizer], None]:
    def change(optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"].fill_(number)

    return change


def logged(model: nn.Module, x: torch.Tensor, rank: int) -> list[str]:
    """Rank 0 alone compiles what reads the parameters, and what writes to copies of them."""
    torch._dynamo.reset()
    torch.compile(model, backend="verify", options=INNER)(x).backward()
    parameters = list(model.parameters())
    copies = [parameter.detach().clone() for parameter in parameters]
    norm = torch.compile(lambda values: sum(v.square().sum() for v in values), backend="verify", options=INNER)
    follow = torch.compile(lambda mean, new: torch._foreach_lerp_(mean, new, 0.1), backend="verify", options=INNER)
    if rank:
        return ["ran"] * 3
    with torch.no_grad():
        evaluated = said(lambda: norm(parameters))
        followed = said(lambda: follow(copies, parameters))
    return [said(lambda: norm(parameters)), evaluated, followed]


def clipped(model: nn.Module, x: torch.Tensor, norm: float) -> list[str]:
    torch._dynamo.reset()
    model(x).backward()
    clip = torch.compile(torch.nn.utils.clip_grad_norm_, backend="verify", options=INNER)
    return [said(lambda: clip(list(model.parameters()), norm))]


def noisy(model: nn.Module, x: torch.Tensor, seed: int) -> list[str]:
    """Random numbers are a part of the update; ``seed``: of this rank."""
    torch._dynamo.reset()
    model(x).backward()

    @torch.no_grad()
    def step(values: list[nn.Parameter]) -> None:
        for value in values:
            value.add_(torch.randn_like(value))

    torch.manual_seed(seed)
    compiled = torch.compile(step, backend="verify", options=INNER)
    return [said(lambda: compiled(list(model.parameters())))]


def passed(mesh: DeviceMesh, number: float) -> list[str]:
    """Parameters that are arguments, of which a bias is ``number`` on this rank."""
    torch._dynamo.reset()
    layer = parallel(Layer(), mesh)
    values: dict[str, Any] = dict(layer.named_parameters())
    bias = values["down.bias"]
    held = DTensor.from_local(torch.full((8,), number), mesh, bias.placements, run_check=False)
    values["down.bias"] = nn.Parameter(held)
    call = torch.compile(
        lambda held: functional_call(layer, held, (torch.ones(4, 8),)), backend="verify", options=INNER
    )
    return [said(lambda: call(values))]


def answers_of_rank(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    x = torch.ones(2, 4) + rank

    def ddp() -> nn.Module:
        return DistributedDataParallel(Loss())

    answers: dict[str, Any] = {}
    for word, differs in (("right", 0), ("wrong", rank)):
        model = ddp()
        answers[f"{word} decay"] = stepped(model, AdamW(model.parameters(), weight_decay=0.1 * differs), x)
        model = ddp()
        rate = AdamW(model.parameters(), lr=torch.tensor(0.1))
        answers[f"{word} later"] = stepped(model, rate, x, scheduled(0.01 + 0.1 * differs))
        model = ddp()
        by_hand = SGD(model.parameters(), lr=0.1 + differs)
        answers[f"{word} by hand"] = stepped(model, by_hand, x, by_hand=True, compiles_model=False)
        answers[f"{word} clipping"] = clipped(ddp(), x, 0.1 + differs)
        answers[f"{word} noise"] = noisy(ddp(), x, differs)
        answers[f"{word} argument"] = passed(mesh, 1.0 + differs)
        headed = Headed(mesh)
        head = SGD(headed.head.parameters(), lr=0.1 + differs)
        answers[f"{word} verified before"] = stepped(headed, head, torch.ones(4, 8))
    model = ddp()
    parts = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    answers["parts"] = stepped(model, parts, x)
    model = Loss()
    answers["each its own"] = stepped(model, SGD(model.parameters(), lr=0.1 + rank), x, compiles_model=False)
    answers["logged"] = logged(ddp(), x, rank)
    return answers


if __name__ == "__main__":
    tell(answers_of_rank, dt.timedelta(seconds=60))
