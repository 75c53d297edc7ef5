"""Several faults in one program are several findings, and a fault of one pipeline stage is reported in that stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

TOGETHER = "(checked, together with the help of the other findings)"


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return collectives.wait_tensor(collectives.all_reduce(grad, "sum", ctx.group)), None


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return collectives.wait_tensor(collectives.all_reduce(x, "sum", group))

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Block(nn.Module):
    """``faults``: which of the reductions are missing."""

    def __init__(self, heads, hidden, group=None, faults=()):
        super().__init__()
        self.group, self.faults = group, faults
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(6, heads, 3)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(heads, 3, 6))
        self.q_norm, self.k_norm = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.up, self.down = nn.Parameter(torch.randn(6, hidden)), nn.Parameter(torch.randn(hidden, 6))

    def copied(self, x, name):
        return x if self.group is None or name in self.faults else _Copied.apply(x, self.group)

    def reduced(self, x, name):
        return x if self.group is None or name in self.faults else _Reduced.apply(x, self.group)

    def forward(self, x):
        h = self.copied(x.tanh(), "attention")
        q = F.rms_norm(torch.einsum("td,dhe->hte", h, self.wq), (3,), self.copied(self.q_norm, "q_norm"))
        k = F.rms_norm(torch.einsum("td,dhe->hte", h, self.wk), (3,), self.copied(self.k_norm, "k_norm"))
        weights = (q @ k.transpose(1, 2)).softmax(-1)
        heads = weights @ torch.einsum("td,dhe->hte", h, self.wv)
        attended = torch.einsum("hte,hed->td", heads, self.wo)
        x = x + self.reduced(attended, "attended")
        h = self.copied(x.tanh(), "feed forward")
        fed = F.gelu(h @ self.up) @ self.down
        return x + self.reduced(fed, "fed")


def of_block(*faults: str) -> Report:
    heads = {name: (Shard(1),) for name in ("wq", "wk", "wv", "up")}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        return verifycompile.verify(
            Block(1, 4, mesh.get_group(), faults),
            (torch.randn(4, 6, requires_grad=True),),
            spec=Block(2, 8),
            mesh=mesh,
            param_placements={**heads, "wo": (Shard(0),), "down": (Shard(0),)},
            out_placements={"output.0": (Replicate(),)},
        )


def lines(report: Report) -> set[str]:
    source = inspect.getsource(inspect.getmodule(of_block)).splitlines()  # type: ignore[arg-type]
    places = [finding.impl_location for finding in report.findings]
    return {source[place.line - 1].strip().partition(" = ")[0] for place in places if place is not None}


def test_right_block():
    assert of_block().verdict is Verdict.VERIFIED


def test_four_gradients_without_a_reduction_are_four_findings():
    report = of_block("q_norm", "k_norm", "attention", "feed forward")
    assert report.verdict is Verdict.REFUTED
    assert len(report.findings) == 4
    assert all(finding.code == "VC101" for finding in report.findings)
    hints = [finding.hint or "" for finding in report.findings]
    assert all(hint.endswith(TOGETHER) for hint in hints)
    assert any(hint.startswith("sum the gradient of `q_norm` over `tp`") for hint in hints)
    assert any(hint.startswith("sum the gradient of `k_norm` over `tp`") for hint in hints)


class NormedHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(4), nn.RMSNorm(4)

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        q, k = self.q_norm(q), self.k_norm(k)
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_two_gradients_of_one_line_are_two_findings():
    plan = {"wq": ColwiseParallel(), "wk": ColwiseParallel(), "wv": ColwiseParallel(), "wo": RowwiseParallel()}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(parallelize_module(NormedHeads(), mesh, plan), (torch.randn(2, 4, 8),))
    assert report.verdict is Verdict.REFUTED
    assert [finding.output for finding in report.findings] == ["grad.q_norm.weight", "grad.k_norm.weight"]
    for finding in report.findings:
        assert finding.followers == 0
        name = finding.output.removeprefix("grad.")
        assert (finding.hint or "").startswith(f"sum the gradient of `{name}` over `tp`")
        assert (finding.hint or "").endswith(TOGETHER)
    source = inspect.getsource(inspect.getmodule(of_block)).splitlines()  # type: ignore[arg-type]
    for finding in report.findings:
        assert finding.impl_location is not None
        assert "self.q_norm(q), self.k_norm(k)" in source[finding.impl_location.line - 1]


def test_two_faults_one_behind_the_other_are_two_findings():
    report = of_block("attended", "fed")
    assert report.verdict is Verdict.REFUTED
    assert lines(report) == {"attended", "fed"}
    assert sorted(finding.hint or "" for finding in report.findings) == sorted(
        f"all-reduce `{name}` over `tp` (sum) after line {number_of(name)} {TOGETHER}" for name in ("attended", "fed")
    )


def number_of(name: str) -> int:
    """The line of this file that assigns to ``name``."""
    found, start = inspect.getsourcelines(Block.forward)
    return start + next(place for place, line in enumerate(found) if line.strip().startswith(f"{name} = "))


def pipeline(mesh: DeviceMesh, is_reduced: bool) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Two stages of two ranks each: the first multiplies with ``v``, the second with ``w``, of which each has a part."""

    def program(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rank, part = dist.get_rank(), dist.get_rank() % 2
        own = slice(2 * part, 2 * part + 2)
        if rank < 2:
            y = x[:, own] @ v[own]
            if is_reduced:
                dist.all_reduce(y, group=mesh.get_group("tp"))
            y = y.tanh()
            dist.send(y, rank + 2)
            return y * 0
        y = torch.empty(3, 4)
        dist.recv(y, rank - 2)
        y = y[:, own] @ w[own]
        dist.all_reduce(y, group=mesh.get_group("tp"))
        return y

    return program


@pytest.mark.parametrize("is_reduced", [True, False])
def test_fault_of_the_first_stage_is_reported_there(is_reduced: bool) -> None:
    with fake_mesh_world((2, 2), ("pp", "tp")) as mesh:
        report = verifycompile.verify(
            None,
            (torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 4)),
            build=lambda: pipeline(mesh, is_reduced),
            spec=lambda x, v, w: (x @ v).tanh() @ w,
            mesh=mesh,
        )
    assert report.verdict is (Verdict.VERIFIED if is_reduced else Verdict.REFUTED)
    if is_reduced:
        return
    (finding,) = report.findings
    found, start = inspect.getsourcelines(pipeline)
    line = start + next(place for place, text in enumerate(found) if text.strip().startswith("y = x[:, own]"))
    assert finding.impl_location is not None
    assert finding.impl_location.line == line
    assert finding.message == "`y` is a partial sum over `tp`; its sum over all ranks is needed"
    assert finding.hint == f"all-reduce `y` over `tp` (sum) after line {line} (checked)"


def test_what_can_be_mended_is_told_where_another_fault_cannot():
    """No change at one node makes a softmax over all ranks of a sine."""

    def wrong(x: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(0) * 3
        return mean, scores.sin(), collectives.all_reduce(x.sum(1), "avg", mesh)

    with fake_mesh_world((2,), ("tp",)) as mesh:
        report = verifycompile.verify(
            wrong,
            (torch.randn(3, 4), torch.randn(3, 2)),
            spec=lambda x, scores: (x.mean(0) * 2, scores.softmax(1), x.sum(1) * 2),
            mesh=mesh,
            in_placements={"scores": (Shard(1),)},
            out_placements={"output.0": (Replicate(),), "output.1": (Shard(1),), "output.2": (Replicate(),)},
        )
    assert report.verdict is Verdict.REFUTED
    first, second = report.findings
    checked = "(checked: `output.0`, `output.2` proved so)"
    assert first.hint is not None
    assert first.hint.endswith(f"not by 3 {checked}")
    assert 'use "sum" in the place of "avg"' in (second.hint or "")
    assert (second.hint or "").endswith(checked)
    assert "no change was found that mends `output.1`" in first.notes


@pytest.mark.parametrize("dim", [0, 3])
def test_a_result_that_is_mended_is_told_where_gradients_cannot_be_compared(dim: int) -> None:
    """DTensor takes the parts of a convolution along a dimension in space for the whole, in its backward too."""
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = distribute_module(nn.Conv2d(3, 8, 4, stride=4), mesh)
        x = distribute_tensor(torch.randn(2, 3, 8, 16), mesh, [Shard(dim)])
        report = verifycompile.verify(model, (x,), spec=nn.Conv2d(3, 8, 4, stride=4))
    if dim == 0:
        assert report.verdict is Verdict.VERIFIED
        return
    assert report.verdict is Verdict.REFUTED
    (finding,) = report.findings
    told = "say where its parts lie: `DTensor.from_local(result.to_local(), mesh, (Shard(3),))`"
    assert finding.hint == f"{told} (checked: `output.0` proved so)"
    assert "no change was found that mends `grad.bias`, `grad.weight`" in finding.notes
