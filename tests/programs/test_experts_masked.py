"""Every rank has all tokens and some experts: tokens of other ranks' experts are masked, and the results are added up.

The places of the others in the routing hold a number behind that of the last own expert, which a sort puts last.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

HIDDEN, INNER, EXPERTS, CHOSEN, TOKENS = 8, 16, 4, 2, 8


class Experts(nn.Module):
    """The whole layer on one device, or all tokens and a rank's experts where there is a mesh."""

    def __init__(self, mesh: DeviceMesh | None = None, bug: str = "") -> None:
        super().__init__()
        self.mesh, self.bug = mesh, bug
        self.own = EXPERTS // (mesh.size() if mesh is not None else 1)
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.up = nn.Parameter(torch.randn(self.own, HIDDEN, 2 * INNER))
        self.bias = nn.Parameter(torch.randn(self.own, 2 * INNER))
        self.down = nn.Parameter(torch.randn(self.own, INNER, HIDDEN))

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the chosen experts: of those of another rank zero, and a number behind the last."""
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        if self.mesh is None:
            return weights, chosen
        rank = self.mesh.get_local_rank()
        if self.bug == "the next rank's":
            rank = (rank + 1) % self.mesh.size()
        other = torch.div(chosen, self.own, rounding_mode="floor") != rank
        if self.bug == "places shifted":
            chosen = chosen + 1
        if self.bug == "no place of their own":
            return weights, torch.where(other, self.own - 1, chosen % self.own)
        local = torch.where(other, self.own, chosen % self.own)
        return weights if self.bug == "weights" else weights.masked_fill(other, 0.0), local

    def product(self, x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x.bfloat16(), matrices.bfloat16(), offs=ends).float()

    def masked(self, x: Tensor, numbers: Tensor) -> Tensor:
        return x if self.mesh is None else x.masked_fill((numbers >= self.own).unsqueeze(-1), 0.0)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.routed(x)
        numbers, order = torch.sort(chosen.view(-1))
        ends = torch.histc(numbers.float(), self.own, 0, self.own - 1).cumsum(0, dtype=torch.int32)
        bias = self.bias[numbers.clamp(max=self.own - 1)]
        rows = self.masked(x[order // CHOSEN], numbers)
        hidden = self.product(rows, self.up, ends) + bias
        gate, up = (hidden if self.bug == "hidden rows" else self.masked(hidden, numbers)).chunk(2, -1)
        y = self.product(F.silu(gate) * up, self.down, ends)
        y = y if self.bug == "rows" else self.masked(y, numbers)
        y = y * weights.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        result = y[inverse].view(-1, CHOSEN, HIDDEN).sum(1)
        if self.mesh is None or self.bug == "sum":
            return result
        return DTensor.from_local(result, self.mesh, [Partial("avg" if self.bug == "mean" else "sum")]).full_tensor()


class Signed(Experts):
    """Experts of other ranks are -1 before they get the number behind the last."""

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        if self.mesh is None:
            return weights, chosen
        other = chosen // self.own != self.mesh.get_local_rank()
        local = torch.fmod(chosen.masked_fill(other, -1), self.own)
        return weights.masked_fill(other, 0.0), local.masked_fill(local == -1, self.own)


class Ranged(Experts):
    """Own experts are those of a range."""

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        if self.mesh is None:
            return weights, chosen
        start = self.mesh.get_local_rank() * self.own
        own = torch.logical_and(chosen >= start, chosen < start + self.own)
        return weights * own, torch.where(own, chosen - start, self.own)


def verified(kind: type[Experts], bug: str = "", ranks: int = 2) -> Report:
    own, added = (Shard(0),), (Partial(),)
    with fake_mesh_world((ranks,), ("ep",)) as mesh:
        return verifycompile.verify(
            None,
            (torch.randn(TOKENS, HIDDEN, requires_grad=True),),
            build=lambda: kind(mesh, bug),
            mesh=mesh,
            spec=kind(),
            param_placements={"gate": (Replicate(),), "up": own, "bias": own, "down": own},
            grad_placements={"gate": added, "x": added, "up": own, "bias": own, "down": own},
            out_placements={"output.0": (Replicate(),)},
        )


@pytest.mark.parametrize("ranks", [2, EXPERTS])
def test_experts_of_all_ranks_added_up(ranks: int) -> None:
    report = verified(Experts, ranks=ranks)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", [Signed, Ranged])
def test_own_experts_may_be_found_otherwise(kind: type[Experts]) -> None:
    report = verified(kind)
    assert report.verdict is Verdict.VERIFIED, str(report)


def test_rows_that_are_masked_need_no_weight_of_zero() -> None:
    assert verified(Experts, "weights").verdict is Verdict.VERIFIED


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("bug", ["the next rank's", "places shifted", "no place of their own", "sum", "mean"])
def test_experts_of_other_ranks_or_not_added_up_are_refuted(bug: str) -> None:
    assert verified(Experts, bug).verdict is Verdict.REFUTED


def test_one_expert_of_another_rank_is_not_verified() -> None:
    assert verified(Experts, "the next rank's", ranks=EXPERTS).verdict is not Verdict.VERIFIED


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("bug", ["rows", "hidden rows"])
def test_rows_that_no_expert_writes_are_not_taken_for_zero(bug: str) -> None:
    """The weights are zero there, but nothing says that what the kernel leaves in its result is a number."""
    assert verified(Experts, bug).verdict is Verdict.REFUTED
