"""Ranks that cut elsewhere than the program does: three parts of a row over two ranks, or parts that end in a row."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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


class Attention(nn.Module):
    """Queries, keys and values of one product, of which every rank holds rows that end within the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fused, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.fused(self.norm(x)).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        query, key, value = self.parts(heads)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))

    @staticmethod
    def parts(heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return heads.unbind(0)


class KeysAsValues(Attention):
    @staticmethod
    def parts(heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, value, key = heads.unbind(0)
        return query, key, value


@pytest.mark.parametrize("kind", [Attention, KeysAsValues], ids=lambda kind: kind.__name__)
def test_attention(kind: type[Attention]) -> None:
    """With the gradient of the input: a sum over all rows, which the ranks take one part each of."""
    spec, model = nn.Sequential(Attention(), Attention()), nn.Sequential(Attention(), kind())
    with fake_mesh_world((2,), ("tp",)) as mesh:
        plan = {"fused": ColwiseParallel(output_layouts=Replicate()), "out": RowwiseParallel(input_layouts=Replicate())}
        for block in model:
            parallelize_module(block, mesh, dict(plan))
        report = verify(model, (torch.randn(2, 4, 8, requires_grad=True),), spec=spec)
    if kind is Attention:
        assert report.verdict is Verdict.VERIFIED, str(report)
        assert "grad.input" in report.relations
        return
    assert report.verdict is Verdict.REFUTED, str(report)
    location = report.findings[0].impl_location
    assert location is not None
    assert (location.file, location.function) == (__file__, "forward"), location


def step(weight: torch.Tensor, momentum: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Descent along the gradient's average, by the root of its squared length."""

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight).square().sum()

    average = 0.9 * momentum + torch.func.grad(loss)(weight)
    return weight - average / (average.square().sum() + 1).sqrt()


def sharded_step(mesh: DeviceMesh, mistake: str) -> Callable[..., torch.Tensor]:
    """Every rank updates its part of the elements, which ends within a row."""

    def of_rank(whole: torch.Tensor) -> torch.Tensor:
        length, rank = whole.numel() // mesh.size(), mesh.get_local_rank()
        return whole.reshape(-1)[rank * length : (rank + 1) * length]

    def updated(weight: torch.Tensor, momentum: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def loss(weight: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ weight).square().sum()

        flat = torch.func.grad(loss)(weight).reshape(-1)
        average = 0.9 * of_rank(momentum) + funcol.reduce_scatter_tensor(flat, "sum", 0, mesh)
        squares = average.square().sum()
        if mistake != "length":
            squares = funcol.all_reduce(squares, "sum", mesh)
        part = of_rank(weight.t() if mistake == "order" else weight) - average / (squares + 1).sqrt()
        return funcol.all_gather_tensor(part, 0, mesh).view(weight.shape)

    return updated


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("mistake", ["", "length", "order"])
def test_flat_parts_of_a_parameter(ranks: int, mistake: str) -> None:
    with fake_mesh_world((ranks,), ("dp",)) as mesh:
        report = verify(
            None,
            (torch.randn(6, 10), torch.randn(6, 10), torch.randn(4, 6)),
            build=lambda: sharded_step(mesh, mistake),
            spec=step,
            mesh=mesh,
            in_placements={"x": (Shard(0),), "weight": (Replicate(),), "momentum": (Replicate(),)},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
    if mistake:
        location = report.findings[0].impl_location
        assert location is not None
        assert (location.file, location.function) == (__file__, "updated")
