"""A plan that is wrong is wrong in every layer: that is one finding, with what there is to do in each of them."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict


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
    assert finding.hint == "; ".join(
        f"cut each of the 2 components of `{layer}.gate_and_up.weight` over `tp` by itself, and join the rank's parts: "
        "`torch.cat([part.chunk(2, dim)[rank] for part in weight.chunk(2, dim)], dim)`"
        for layer in range(layers)
    ) + " (checked)"
