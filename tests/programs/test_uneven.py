"""DTensors whose shards have different sizes, some of them none at all: proved with the ranks enumerated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.support import fake_mesh_world
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.frontends.model import verify

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
SIZES = [(2, 3), (4, 3), (4, 9), (4, 10)]
"""Ranks and the size of the sharded dimension; a rank without rows, a last rank with fewer."""


def sharded(mesh: DeviceMesh, *shape: int) -> nn.Parameter:
    return nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [ROWS]))


class Whole(nn.Module):
    """A two-layer network, one device."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(hidden, 4))
        self.bias = nn.Parameter(torch.randn(hidden))
        self.down = nn.Parameter(torch.randn(4, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.up.t() + self.bias) @ self.down.t()


class FullySharded(nn.Module):
    """The same, every parameter gathered before its use and its gradient reduced and scattered after it."""

    def __init__(self, mesh: DeviceMesh, hidden: int, reduction: str = "sum", mistake: str = "") -> None:
        super().__init__()
        self.up, self.bias, self.down = sharded(mesh, hidden, 4), sharded(mesh, hidden), sharded(mesh, 4, hidden)
        self.mesh, self.reduction, self.mistake = mesh, reduction, mistake

    def gathered(self, parameter: nn.Parameter) -> torch.Tensor:
        assert isinstance(parameter, DTensor)
        gradient = WHOLE if self.mistake == "not reduced" else Partial(self.reduction)
        return parameter.redistribute(self.mesh, [WHOLE]).to_local(grad_placements=[gradient])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, bias = self.gathered(self.up), self.gathered(self.bias)
        if self.mistake == "rotated":
            up = up.roll(1, 0)
        if self.mistake == "cut":
            up = torch.cat([up[:-1], up[:1]])
        return torch.relu(x @ up.t() + bias) @ self.gathered(self.down).t()


def fully_sharded(ranks: int, hidden: int, rank: int = 0, **mistake: str) -> Report:
    with fake_mesh_world((ranks,), ("dp",), rank) as mesh:
        model = FullySharded(mesh, hidden, **mistake)
        return verify(model, (torch.randn(2, 4),), spec=Whole(hidden), in_placements={"x": (ROWS,)})


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("ranks", "hidden"), SIZES)
def test_gathered_parameters_verify(ranks: int, hidden: int) -> None:
    report = fully_sharded(ranks, hidden)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {"output.0", "grad.up", "grad.bias", "grad.down"} <= report.relations.keys()
    assert f"the program was captured as each of its {ranks} ranks, with the objects of this one" in report.assumptions


def test_any_rank_may_capture() -> None:
    report = fully_sharded(4, 9, rank=3)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    "mistake", [{"reduction": "avg"}, {"mistake": "not reduced"}, {"mistake": "rotated"}, {"mistake": "cut"}]
)
@pytest.mark.parametrize(("ranks", "hidden"), [(2, 3), pytest.param(4, 10, marks=pytest.mark.sweep)])
def test_mistake_with_gathered_parameters_is_refuted(ranks: int, hidden: int, mistake: dict[str, str]) -> None:
    report = fully_sharded(ranks, hidden, **mistake)
    assert report.verdict is Verdict.REFUTED, str(report)


class OnShards(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def on_shards(
    ranks: int, size: int, function: Callable[[torch.Tensor], Any], spec: Any = None, **options: Any
) -> Report:
    with fake_mesh_world((ranks,), ("tp",)) as mesh:
        x = distribute_tensor(torch.randn(size, 4), mesh, [ROWS]).requires_grad_()
        given = {} if spec is None else {"spec": OnShards(spec)}
        return verify(OnShards(function), (x,), **given, **options)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "element-wise, summed": lambda x: (x.tanh() * 2).sum(),
    "statistics of rows": lambda x: torch.softmax(x, -1) - x.mean(-1, keepdim=True),
    "mean of all": lambda x: x.exp().mean(),
    "product of rows": lambda x: x.t() @ x.tanh(),
}


@pytest.mark.parametrize(("ranks", "size"), [(4, 9), *(pytest.param(*size, marks=pytest.mark.sweep) for size in SIZES)])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_operators_on_uneven_shards_verify(program: Callable[[torch.Tensor], Any], ranks: int, size: int) -> None:
    report = on_shards(ranks, size, program)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "grad.x" in report.relations


def local_sum(x: torch.Tensor) -> torch.Tensor:
    assert isinstance(x, DTensor)
    return x.to_local().tanh().sum()


MISTAKES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "scaled": (lambda x: (x.tanh() * 2).sum(), lambda x: x.tanh().sum()),
    "mean of the local means": (
        lambda x: DTensor.from_local(x.to_local().mean(0), x.device_mesh, [Partial("avg")]).full_tensor(),  # type: ignore[attr-defined]
        lambda x: x.mean(0),
    ),
    "not the sum of all": (lambda x: (x.exp().sum(0) * 2).full_tensor(), lambda x: x.exp().sum(0)),  # type: ignore[operator]
}


@pytest.mark.parametrize(("program", "spec"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize(("ranks", "size"), [(4, 10), pytest.param(2, 3, marks=pytest.mark.sweep)])
def test_mistake_on_uneven_shards_is_refuted(program: Any, spec: Any, ranks: int, size: int) -> None:
    report = on_shards(ranks, size, program, spec)
    assert report.verdict is Verdict.REFUTED, str(report)


class Normalized(nn.Module):
    """What each rank computes has the scale of the normalization as a factor in front of its own part of a sum."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4)
        self.gate, self.up = nn.Linear(4, hidden, bias=False), nn.Linear(4, hidden, bias=False)
        self.down = nn.Linear(hidden, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def normalized(mistake: str) -> Verdict:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        columns = ColwiseParallel(use_local_output=False)
        plan = {"gate": columns, "up": columns, "down": RowwiseParallel()}
        model = parallelize_module(Normalized(5), mesh, plan)
        original = model.down.forward
        if mistake == "part of the sum":
            model.down.forward = lambda x: DTensor.from_local(original(x).to_local(), mesh, [WHOLE], run_check=False)
        if mistake == "exchanged":
            model.up.forward, model.gate.forward = model.gate.forward, model.up.forward
        return verify(model, (torch.randn(2, 4),), spec=Normalized(5)).verdict


@pytest.mark.parametrize("mistake", ["", "part of the sum", "exchanged"])
def test_parts_of_a_sum_with_a_factor_in_front(mistake: str) -> None:
    assert normalized(mistake) is (Verdict.REFUTED if mistake else Verdict.VERIFIED)


class Turned(Normalized):
    """Slices of its own, as rotary embeddings and shifts take them, beside parameters in uneven shards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
        steps = torch.cat((x[1:] - x[:-1], x[:1]))
        return super().forward(x * 2 + turned) + steps


def test_slices_that_the_spec_takes_as_well() -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        columns = ColwiseParallel(use_local_output=False)
        plan = {"gate": columns, "up": columns, "down": RowwiseParallel()}
        report = verify(parallelize_module(Turned(5), mesh, plan), (torch.randn(4, 4),), spec=Turned(5))
    assert report.verdict is Verdict.VERIFIED, str(report)
