"""What every layer leaves out, or takes of all ranks alike, is told once, with the backward pass that follows from it."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.tensor import Partial, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

ROWS = (Shard(0),)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return collectives.all_gather_tensor(x, 0, group)

    @staticmethod
    def backward(ctx, grad):
        return collectives.reduce_scatter_tensor(grad, "sum", 0, ctx.group), None


class Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return collectives.reduce_scatter_tensor(x, "sum", 0, group)

    @staticmethod
    def backward(ctx, grad):
        return collectives.all_gather_tensor(grad, 0, ctx.group), None


class Block(nn.Module):
    """Rows are spread over the ranks, and so is the inner width. ``mistake``: what is done otherwise."""

    def __init__(self, group, mistake: str) -> None:
        super().__init__()
        self.group, self.mistake = group, mistake
        width = 8 if group is None else 4
        self.norm = nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, width, bias=False), nn.Linear(width, 4, bias=False)

    def forward(self, x):
        if self.group is None:
            return x + self.down(torch.tanh(self.up(self.norm(x))))
        y = self.down(torch.tanh(self.up(Gathered.apply(self.norm(x), self.group))))
        if self.mistake == "chunk":
            return x + y.chunk(2)[0]
        if self.mistake == "slice":
            return x + y[: x.shape[0]]
        if self.mistake == "lost":
            return Scattered.apply(y, self.group)
        return x + Scattered.apply(y, self.group)


class Stack(nn.Module):
    def __init__(self, group, mistake: str, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(group, mistake) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


LOST = "return Scattered.apply(y, self.group)"
MISTAKES = {
    "chunk": ("y.chunk(2)[0]", "VC101", "reduce-scatter `y` over `tp` (sum) at line {line} (checked)"),
    "slice": ("y[: x.shape[0]]", "VC101", "reduce-scatter `y` over `tp` (sum) at line {line} (checked)"),
    "lost": (
        LOST, "VC108",
        "add to `Scattered.apply(y, self.group)` at line {line} what it is computed of, each time (`x` the first time) (checked)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", ["", *MISTAKES])
def test_a_line_of_every_layer_and_its_gradient(mistake):
    with fake_mesh_world((2,), ("tp",)) as mesh:
        spec, model = (Stack(group, mistake, 2) for group in (None, mesh.get_group()))
        options = {
            "in_placements": {"x": ROWS},
            "param_placements": {"layers.*.up.weight": ROWS, "layers.*.down.weight": (Shard(1),)},
            "grad_placements": {"layers.*.norm.*": (Partial(),)},
            "out_placements": {"output.0": ROWS},
        }
        report = verifycompile.verify(model, (torch.randn(2, 4),), spec=spec, mesh=mesh, **options)
    if not mistake:
        assert report.verdict is Verdict.VERIFIED
        return
    (finding,) = report.findings
    said, code, hint = MISTAKES[mistake]
    lines, first = inspect.getsourcelines(Block.forward)
    line = first + next(at for at, text in enumerate(lines) if said in text)
    place = finding.impl_location
    assert (report.verdict, finding.code, place.file, place.line) == (Verdict.REFUTED, code, __file__, line)
    assert finding.hint == hint.format(line=line)
