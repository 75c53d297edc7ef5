"""The line inside of a forward that is off: the first operation whose value is not the spec's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from tests.comparison.programs import on_ranks
from tests.programs.autograd_collectives import LegacyCopy, LegacyReduce
from verifycompile import CompareReport, Verdict

LINES = Path(__file__).read_text().splitlines()
SAID = " gives the first value of this forward that is not the spec's, whole or in parts"

FIRST = " gives the first gradient that is not the spec's, whole or in parts"


class Smoothed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: bool) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.wrong = wrong
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (1 - x.tanh() ** (3 if ctx.wrong else 2)), None


smoothed = Smoothed.apply


@torch.library.custom_op("verifycompile_tests::halved", mutates_args=())
def halved(x: torch.Tensor, wrong: bool) -> torch.Tensor:
    return x / 2


halved.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", 2.0 if inputs[1] else 0.5),
)


class Attention(nn.Module):
    """Heads over ranks, written with plain tensors. ``bug``: what is wrong in it."""

    def __init__(self, bug: str = "", mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.bug, self.mesh = bug, mesh
        self.ranks = 1 if mesh is None else mesh.size()
        self.qkv = nn.Linear(16, 48 // self.ranks, bias=False)
        self.out = nn.Linear(16 // self.ranks, 16, bias=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        if self.mesh is not None:
            hidden = LegacyCopy.apply(hidden, self.mesh.get_group())
        if self.bug == "hook" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 2)
        heads = self.qkv(hidden).unflatten(-1, (4 // self.ranks, 12)).transpose(1, 2)
        query, key, value = heads.chunk(3, -1)
        scores = query @ key.transpose(-1, -2)
        scores = scores / math.sqrt(16 if self.bug == "scale" else 4)
        weights = scores.softmax(-2 if self.bug == "dimension" else -1)
        if self.bug == "other functions":
            weights = weights.exp().log() * 2
        if self.mesh is not None:
            value = smoothed(value, self.bug == "custom function")
            value = halved(value, self.bug == "kernel")
        else:
            value = value.tanh() / 2
        mixed = self.out((weights @ value).transpose(1, 2).flatten(2))
        if self.mesh is not None and self.bug != "sum":
            mixed = LegacyReduce.apply(mixed, self.mesh.get_group())
        if self.bug == "no gradient":
            x = x.detach()
        return torch.relu(x + mixed)


class Model(nn.Module):
    def __init__(self, bug: str = "", mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.first, self.second = Attention("", mesh), Attention(bug, mesh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * 2).square().mean()


def compared(bug: str) -> CompareReport:
    def build(mesh: DeviceMesh) -> nn.Module:
        torch.manual_seed(dist.get_rank())
        return Model(bug, mesh)

    placed = {"*.qkv.weight": (Shard(0),), "*.out.weight": (Shard(1),)}
    inputs = (torch.randn(2, 4, 16),)
    return on_ranks(build, inputs, spec=Model(), param_placements=placed)


def test_the_right_program_has_no_such_line() -> None:
    report = compared("")
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.parametrize(
    ("bug", "function", "line"),
    [
        ("scale", "div", "scores = scores / math"),
        ("dimension", "softmax", "weights = scores.softmax("),
        ("sum", "add", "return torch.relu(x + mixed)"),
        ("other functions", "mul", "weights = weights.exp().log() * 2"),
    ],
)
def test_the_line_inside_of_a_forward(bug: str, function: str, line: str) -> None:
    report = compared(bug)
    assert report.verdict is Verdict.REFUTED, str(report)
    (first, *_) = report.findings
    assert first.impl_location is not None
    assert line in LINES[first.impl_location.line - 1], str(report)
    assert (first.impl_location.module or "").startswith("second")
    unknown = ", which the spec does not call," if bug == "other functions" else ""
    assert first.label == f"`{function}`{unknown}{SAID}"


@pytest.mark.parametrize(
    ("bug", "line", "label"),
    [
        ("custom function", "value = smoothed(", f"the backward of `Smoothed`, which the spec does not call,{FIRST}"),
        ("kernel", "value = halved(", f"the backward of `halved.default`, which the spec does not call,{FIRST}"),
        ("hook", "hidden.register_hook(", f"the hook on the gradient of `LegacyCopy`{FIRST}"),
        ("no gradient", "return torch.relu(", "`add` gives no gradient to a value that the spec's gives one"),
    ],
)
def test_the_line_whose_backward_is_wrong(bug: str, line: str, label: str) -> None:
    report = compared(bug)
    assert report.verdict is Verdict.REFUTED, str(report)
    (first, *_) = report.findings
    assert first.impl_location is not None
    assert line in LINES[first.impl_location.line - 1], str(report)
    assert (first.impl_location.module or "").startswith("second")
    assert first.label == label
