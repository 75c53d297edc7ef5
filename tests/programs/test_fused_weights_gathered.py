"""A fused weight that ranks cut elsewhere than the program does: three parts of a row over two ranks, gathered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.model import verify


class Modulated(nn.Module):
    """A scale, a shift and a gate out of one product, as the blocks of diffusion transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fused = nn.Linear(4, 8, bias=False), nn.Linear(8, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, shift, gate = self.fused(torch.relu(self.embedding(x))).chunk(3, dim=1)
        return (x * scale + shift) * gate


class Exchanged(Modulated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.fused(torch.relu(self.embedding(x))).chunk(3, dim=1)
        return (x * scale + shift) * gate


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", [Modulated, Exchanged], ids=lambda kind: kind.__name__)
def test_three_parts(ranks: int, kind: type[Modulated]) -> None:
    """Gradients of the parts are sums over the ranks' own stretches of the row, which end within a part."""
    spec, model = Modulated(), kind()
    model.load_state_dict(copy.deepcopy(spec.state_dict()))
    with fake_mesh_world((ranks,), ("tp",)) as mesh:
        parallelize_module(model.fused, mesh, ColwiseParallel(output_layouts=Replicate()))
        report = verify(model, (torch.randn(2, 4),), spec=spec)
    if kind is Modulated:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    assert report.verdict is Verdict.REFUTED, str(report)
    location = report.findings[0].impl_location
    assert location is not None
    assert location.file == __file__
