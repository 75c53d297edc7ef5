"""What is wrong in a layer is wrong in every layer: that is one finding, with what there is to do in each of them."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.tensor import DeviceMesh, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict
from verifycompile.cause import search


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_and_up = nn.Linear(4, 16, bias=False)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        gate, up = self.gate_and_up(x).chunk(2, -1)
        return x + self.down(torch.tanh(gate) * up)


class Separate(Gated):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
        del self.gate_and_up

    def forward(self, x):
        return x + self.down(torch.tanh(self.gate(x)) * self.up(x))


def planned(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    columns = dict.fromkeys(("gate_and_up", "gate", "up"), ColwiseParallel())
    for layer in model:
        own = {name: style for name, style in columns.items() if hasattr(layer, name)}
        parallelize_module(layer, mesh, {**own, "down": RowwiseParallel()})
    return model


@pytest.mark.parametrize("layers", [1, 3])
def test_a_fused_weight_that_is_cut_naively_in_every_layer(layers):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        x = torch.randn(2, 4)
        right = nn.Sequential(*(Separate() for _ in range(layers)))
        assert verifycompile.verify(planned(copy.deepcopy(right), mesh), (x,), spec=right).verdict is Verdict.VERIFIED
        wrong = nn.Sequential(*(Gated() for _ in range(layers)))
        report = verifycompile.verify(planned(copy.deepcopy(wrong), mesh), (x,), spec=wrong)
    (finding,) = report.findings
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC118")
    assert not any("that this line is the cause is not" in note for note in finding.notes)
    lines, first = inspect.getsourcelines(planned)
    named = next(number for number, line in enumerate(lines) if "ColwiseParallel()" in line)
    assert (finding.impl_location.file, finding.impl_location.line) == (__file__, first + named)
    assert (
        finding.hint
        == "; ".join(
            f"cut each of the 2 components of `{layer}.gate_and_up.weight` over `tp` by itself, and join the rank's parts: "
            "`torch.cat([part.chunk(2, dim)[rank] for part in weight.chunk(2, dim)], dim)`"
            for layer in range(layers)
        )
        + " (checked)"
    )


class Block(nn.Module):
    """A layer of which each rank of ``group`` has a part; ``mistake``: what it does otherwise than it should."""

    def __init__(self, group, mistake: str) -> None:
        super().__init__()
        self.group, self.mistake = group, mistake
        width = 8 if group is None else 4
        self.up = nn.Linear(4, width, bias=False)
        self.down = nn.Linear(width, 4, bias=False)
        self.bias = nn.Parameter(torch.zeros(4))

    def reduce(self, y):
        return y if self.group is None else collectives.all_reduce(y, "sum", self.group)

    def forward(self, x):
        first, second = (part(self.up(x)) for part in (torch.tanh, torch.sigmoid))
        y = self.down(first * second)
        if self.mistake == "residual":
            return self.reduce(x + y) + self.bias
        if self.mistake == "twice":
            return x + self.reduce(self.reduce(y)) + self.bias
        return x + self.reduce(y) + self.bias


class Stack(nn.Module):
    def __init__(self, group, mistake: str, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(group, mistake) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("mistake", "line", "hint"),
    [
        ("", 0, ""),
        ("residual", 4, "add `x` after the sum over `tp`, or divided by 2 before it (checked)"),
        ("twice", 6, "remove the all-reduce over `tp` at line {} (checked)"),
    ],
)
@pytest.mark.parametrize("layers", [1, 4])
def test_a_line_that_runs_in_every_layer(layers, mistake, line, hint):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        spec, model = (Stack(group, mistake, layers).requires_grad_(False) for group in (None, mesh.get_group()))
        placements = {"layers.*.up.weight": (Shard(0),), "layers.*.down.weight": (Shard(1),)}
        report = verifycompile.verify(model, (torch.randn(2, 4),), spec=spec, mesh=mesh, param_placements=placements)
    if not mistake:
        assert report.verdict is Verdict.VERIFIED
        return
    (finding,) = report.findings
    place = finding.impl_location
    wrong = inspect.getsourcelines(Block.forward)[1] + line
    assert (report.verdict, place.file, place.line) == (Verdict.REFUTED, __file__, wrong)
    behind = "add `self.reduce(x + y) + self.bias` after the sum over `tp`, or divided by 2 before it; "
    assert finding.hint == (behind if layers > 1 and mistake == "residual" else "") + hint.format(wrong)


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return collectives.all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0], None


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return collectives.all_reduce(grad_outputs[0], "sum", ctx.group), None


class Trained(nn.Module):
    """Layers of which each rank of ``group`` has a part; where they are not ``copied``, gradients stay partial sums."""

    def __init__(self, group, copied: bool, layers: int) -> None:
        super().__init__()
        self.group, self.copied = group, copied
        width = 8 if group is None else 4
        self.ups = nn.ModuleList(nn.Linear(4, width, bias=False) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(4, width, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(width, 4, bias=False) for _ in range(layers))
        self.first = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = x * self.first
        for up, gate, down in zip(self.ups, self.gates, self.downs, strict=True):
            h = torch.sin(x)
            h = Copied.apply(h, self.group) if self.group is not None and self.copied else h
            y = down(torch.tanh(up(h)) * gate(h))
            x = x + (y if self.group is None else Summed.apply(y, self.group))
        return x


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("is_long", [False, True])
def test_a_gradient_that_no_layer_sums(copied, is_long, monkeypatch):
    monkeypatch.setattr(search, "MANY", 20 if is_long else 10_000)
    with fake_mesh_world((2,), ("tp",)) as mesh:
        spec, model = Trained(None, True, 3), Trained(mesh.get_group(), copied, 3)
        placements = {"ups.*.weight": (Shard(0),), "gates.*.weight": (Shard(0),), "downs.*.weight": (Shard(1),)}
        report = verifycompile.verify(model, (torch.randn(2, 4),), spec=spec, mesh=mesh, param_placements=placements)
    if copied:
        assert report.verdict is Verdict.VERIFIED
        return
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(Trained.forward)
    named = first + next(number for number, line in enumerate(lines) if "torch.sin" in line)
    assert (report.verdict, finding.code) == (Verdict.REFUTED, "VC101")
    place = finding.impl_location
    assert (place.file, place.line) == (__file__, named)
    assert (
        finding.hint
        == f"all-reduce the gradient that line {named} computes over `tp` (sum) in its backward pass (checked)"
    )
