"""Optimizer steps and the clipping of gradients verify, by hand and with torch's own classes; mistakes in them are refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import verifycompile
from tests.programs.clipping import CLIPPING
from tests.programs.updates import UPDATES, Update
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict
from verifycompile.backends import verify as backend

NAMES = ("x", "y")


def report_on(update: Update, mistake: str = "") -> Report:
    with fake_mesh_world(update.shape, NAMES[: len(update.shape)], rank=1) as mesh:
        return verifycompile.verify(
            update.program(mesh, mistake),
            tuple(update.inputs(mesh)),
            spec=update.spec,
            mesh=mesh,
            in_placements=update.layouts,
        )


@pytest.mark.parametrize("update", [*UPDATES, *CLIPPING], ids=lambda update: update.name)
def test_step_verifies(update: Update) -> None:
    report = report_on(update)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert sum(name.startswith("mutation.") for name in report.relations) >= 3


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("update", "mistake"),
    [(u, m) for u in (*UPDATES, *CLIPPING) for m in u.mistakes],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_mistake_in_a_step_is_refuted(update: Update, mistake: str) -> None:
    report = report_on(update, mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


# ------------------------------------------------------------------------------------------------ torch's optimizers


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def parallel(mesh: DeviceMesh) -> nn.Module:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(Perceptron(), mesh, plan)


def reports_of(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Any) -> list[Report]:
    """The report on every graph that a call compiles."""
    reports: list[Report] = []
    monkeypatch.setattr(backend, "keep_report", reports.append)
    torch.compile(function, backend="verify", options={"inner": "eager"})(*args)
    return reports


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01),
    "adamw-amsgrad-foreach": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_step_of_an_optimizer_verifies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        model = parallel(mesh)
        optimizer = OPTIMIZERS[name](model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter).detach()
        (report,) = reports_of(monkeypatch, optimizer.step)
    assert report.verdict is Verdict.VERIFIED, str(report)
    written = [relation for relation in report.relations if ".params." in relation]
    assert len(written) == 3
    assert len(report.relations) > len(written) or name == "sgd"


def test_step_of_an_optimizer_verifies_without_compiling() -> None:
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        model = parallel(mesh)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter).detach()
        report = verifycompile.verify(optimizer.step)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert len(report.relations) == 12


@pytest.mark.filterwarnings("ignore")  # those of Dynamo on torch's own code, which it meets in backward
def test_training_step_with_an_optimizer_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and the optimizer's step are graphs of their own: backward, and the step itself, break the frame."""
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        model = parallel(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        forward, update = reports_of(monkeypatch, step, torch.randn(4, 4), torch.randn(4, 4))
    assert forward.verdict is Verdict.VERIFIED, str(forward)
    assert update.verdict is Verdict.VERIFIED, str(update)
    assert len(update.relations) == 12


class Step(nn.Module):
    """Forward, backward and the update of one training step."""

    def __init__(self, model: nn.Module, mistake: str = "") -> None:
        super().__init__()
        self.model = model
        self.mistake = mistake

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(self.model(x), target)
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                if self.mistake == "decay of the bias" and parameter.dim() == 1:
                    parameter.mul_(0.9)
                rate = 0.2 if self.mistake == "rate of matrices" and parameter.dim() == 2 else 0.1
                parameter.add_(gradient, alpha=rate if self.mistake == "wrong sign" else -rate)
        return loss.detach()


@pytest.mark.parametrize("mistake", ["", "rate of matrices", "decay of the bias", "wrong sign"])
def test_training_step_in_one_graph(mistake: str) -> None:
    with torch._dynamo.config.patch(trace_autograd_ops=True), fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        inputs = torch.randn(4, 4), torch.randn(4, 4)
        report = verifycompile.verify(Step(parallel(mesh), mistake), inputs, spec=Step(Perceptron()))
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
