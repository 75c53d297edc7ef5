"""A gradient that leaves as a partial sum is told at the line where it became one, not where the parameter is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Replicate, Shard

import verifycompile
from tests.programs.autograd_collectives import Copy, Reduce
from tests.support import fake_mesh_world
from verifycompile import Verdict


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.router, self.w = nn.Linear(4, 4, bias=False), nn.Parameter(torch.randn(count, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        return torch.einsum("te,ted->td", shares, torch.einsum("td,edf->tef", x, self.w).relu())


class ExpertsOnRanks(Experts):
    def __init__(self, mesh: DeviceMesh, *, is_copied: bool) -> None:
        super().__init__(4 // mesh.size())
        self.mesh, self.is_copied = mesh, is_copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        if self.is_copied:
            shares = Copy.apply(shares, self.mesh)
        start = self.mesh.get_local_rank() * self.w.shape[0]
        own = shares[:, start : start + self.w.shape[0]]
        each = torch.einsum("td,edf->tef", x, self.w).relu()
        return Reduce.apply(torch.einsum("te,ted->td", own, each), self.mesh)


class Queries(nn.Module):
    """One head of keys for all heads of queries."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(4, heads * 2, bias=False), nn.Linear(4, 2, bias=False)

    def attend(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (self.heads, 2))
        return torch.einsum("qhd,kd->qhk", q, k).softmax(-1).flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, self.k(x))


class QueriesOnRanks(Queries):
    def __init__(self, mesh: DeviceMesh, *, is_copied: bool) -> None:
        super().__init__(4 // mesh.size())
        self.mesh, self.is_copied = mesh, is_copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = self.k(x)
        if self.is_copied:
            k = Copy.apply(k, self.mesh)
        return self.attend(x, k)


class NormOnRanks(nn.Module):
    """The norm of a rank's own rows, in the line of the spec itself: nothing says more than the parameter's own line."""

    def __init__(self, mesh: DeviceMesh | None = None, *, is_copied: bool = False) -> None:
        super().__init__()
        self.weight, self.mesh, self.is_copied = nn.Parameter(torch.randn(4)), mesh, is_copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if self.is_copied:
            weight = Copy.apply(weight, self.mesh)
        return torch.rms_norm(x, (4,), weight)


ROWS, HEADS = (Shard(0),), (Shard(1),)
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[..., nn.Module], dict[str, Any], str, str, str]] = {
    "experts": (
        lambda: Experts(4), ExpertsOnRanks, {"param_placements": {"w": ROWS}, "out_placements": {"output.0": (Replicate(),)}},
        "router.weight", "own = shares[", "shares = self.router(x)",
    ),
    "queries": (
        lambda: Queries(4), QueriesOnRanks, {"param_placements": {"q.weight": ROWS}, "out_placements": {"output.0": HEADS}},
        "k.weight", "return self.attend(x, k)", "k = self.k(x)",
    ),
    "rows": (
        NormOnRanks, NormOnRanks, {"in_placements": {"x": ROWS}, "out_placements": {"output.0": ROWS}},
        "weight", "return torch.rms_norm(", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_where_a_gradient_becomes_a_partial_sum(name: str, is_copied: bool) -> None:
    spec, kind, placements, parameter, line, used = PROGRAMS[name]
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = kind(mesh, is_copied=is_copied)
        report = verifycompile.verify(model, (torch.randn(3, 4),), spec=spec(), mesh=mesh, **placements)
    if is_copied:
        assert report.verdict is Verdict.VERIFIED, str(report)
        return
    assert report.verdict is Verdict.REFUTED, str(report)
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(kind.forward)
    number = first + next(at for at, text in enumerate(lines) if line in text)
    assert finding.impl_location is not None
    assert (finding.code, finding.impl_location.line) == ("VC101", number), str(report)
    at_parameter = f"sum the gradient of `{parameter}` over `tp`"
    assert finding.hint is not None
    assert finding.hint.endswith("(checked)")
    if not used:
        assert finding.hint.startswith(at_parameter)
        return
    there = (
        f"all-reduce the gradient that line {number} computes over `tp` (sum) in its backward pass; or {at_parameter}"
    )
    assert finding.hint.startswith(there), str(report)
    label = finding.labels[0]
    assert label.text == "the gradient that comes back to this line is each rank's own summand"
    assert used in lines[label.location.line - first]


class Steps(nn.Module):
    """A scan whose step sizes are a product over all channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.low, self.dt = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def scan(self, u: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        return u * torch.exp(-self.dt(low).sigmoid())

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.scan(u, self.low(u))


class StepsOnRanks(Steps):
    def __init__(self, mesh: DeviceMesh, *, is_summed: bool) -> None:
        super().__init__(4 // mesh.size())
        self.mesh, self.is_summed = mesh, is_summed

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        low = self.low(u)
        if self.is_summed:
            low = all_reduce(low, "sum", self.mesh)
        return self.scan(u, low)


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_sum_that_a_line_of_the_spec_needs_is_told_where_it_is_made(is_summed: bool) -> None:
    weights = {"low.weight": HEADS, "dt.weight": ROWS}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = StepsOnRanks(mesh, is_summed=is_summed).requires_grad_(False)
        placements = {"param_placements": weights, "in_placements": {"u": HEADS}, "out_placements": {"output.0": HEADS}}
        report = verifycompile.verify(
            model, (torch.randn(3, 2),), spec=Steps(4).requires_grad_(False), mesh=mesh, **placements
        )
    assert report.verdict is (Verdict.VERIFIED if is_summed else Verdict.REFUTED), str(report)
    if is_summed:
        return
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(StepsOnRanks.forward)
    number = first + next(at for at, text in enumerate(lines) if "low = self.low(u)" in text)
    assert finding.impl_location is not None
    assert (finding.code, finding.impl_location.line) == ("VC101", number), str(report)
    assert finding.label == "`self.dt(low)` needs the full value of `self.low(u)`, which is a partial sum over tp"
    assert finding.labels[0].text == "it is needed here"
    assert finding.hint == f"all-reduce `low` over `tp` (sum) after line {number} (checked)"


def logarithms(x: torch.Tensor) -> torch.Tensor:
    total = x.exp().sum(-1)
    return x - total.log()[:, None] + 0.1 * total.square()[:, None]


@pytest.mark.parametrize("is_right", [True, False])
def test_what_is_reduced_and_used_unreduced_later_is_told_there(is_right: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        own = x.exp().sum(-1)
        total = all_reduce(own, "sum", mesh)
        used = total if is_right else own
        return x - total.log()[:, None] + 0.1 * used.square()[:, None]

    with fake_mesh_world((2,), ("tp",)) as mesh:
        placements = {"in_placements": {"x": HEADS}, "out_placements": {"output.0": HEADS}}
        report = verifycompile.verify(program, (torch.randn(3, 2),), spec=logarithms, mesh=mesh, **placements)
    assert report.verdict is (Verdict.VERIFIED if is_right else Verdict.REFUTED), str(report)
    if is_right:
        return
    (finding,) = report.findings
    lines, first = inspect.getsourcelines(program)
    used, reduced = (first + next(at for at, text in enumerate(lines) if part in text) for part in ("return", "all_r"))
    assert finding.impl_location is not None
    assert (finding.code, finding.impl_location.line) == ("VC101", used), str(report)
    assert finding.hint == f"use what line {reduced} makes of `own` in its place at line {used} (checked)"
