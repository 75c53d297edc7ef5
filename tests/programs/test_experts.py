"""Mixture of experts: routing by top-k, dispatch with a capacity, experts on other ranks, and what goes wrong there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor

import verifycompile
from tests.programs.forms.comm import enter, leave
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SUM = Partial()
HIDDEN, INNER, EXPERTS, TOKENS, CHOSEN, CAPACITY = 8, 12, 4, 8, 2, 3


def count_up(like: Tensor, size: int) -> Tensor:
    numbers = torch.arange(size)
    if not isinstance(like, DTensor):
        return numbers
    return DTensor.from_local(numbers, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)


def route(x: Tensor, gate: Tensor, capacity: int = CAPACITY) -> tuple[Tensor, Tensor, Tensor]:
    """(groups, tokens, hidden) -> dispatch and combine (groups, tokens, experts, capacity), probabilities."""
    probabilities = (x @ gate).softmax(-1)
    weights, chosen = probabilities.topk(CHOSEN, -1)
    groups, tokens = x.shape[:2]
    mask = (chosen.unsqueeze(-1) == count_up(chosen, EXPERTS)).to(x.dtype)
    mask = mask.transpose(1, 2).reshape(groups, CHOSEN * tokens, EXPERTS)
    position = (torch.cumsum(mask, 1) - 1) * mask
    mask = mask * (position < capacity)
    slot = (position.unsqueeze(-1) == count_up(position, CAPACITY)).to(x.dtype) * mask.unsqueeze(-1)
    slot = slot.view(groups, CHOSEN, tokens, EXPERTS, CAPACITY)
    combine = (slot * weights.transpose(1, 2).unsqueeze(-1).unsqueeze(-1)).sum(1)
    return slot.sum(1), combine, probabilities


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, HIDDEN, INNER) * 0.1)
        self.down = nn.Parameter(torch.randn(count, INNER, HIDDEN) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        groups, experts, capacity, hidden = x.shape
        y = x.transpose(0, 1).reshape(experts, groups * capacity, hidden)
        y = torch.bmm(F.gelu(torch.bmm(y, self.up)), self.down)
        return y.view(experts, groups, capacity, hidden).transpose(0, 1)


class Grouped(nn.Module):
    """The spec: tokens in groups, each routed on its own; an auxiliary loss over all of them."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.experts = Experts(EXPERTS)
        self.shared = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        grouped = x.view(self.groups, -1, HIDDEN)
        dispatch, combine, probabilities = route(grouped, self.gate)
        sent = torch.matmul(dispatch.flatten(2).transpose(1, 2), grouped)
        done = self.experts(sent.view(self.groups, EXPERTS, CAPACITY, HIDDEN))
        y = torch.matmul(combine.flatten(2), done.reshape(self.groups, -1, HIDDEN))
        fraction, load = probabilities.mean((0, 1)), dispatch.sum((0, 1, 3)) / TOKENS
        return y.reshape(x.shape) + self.shared(x), (fraction * load).sum() * EXPERTS


class Exchanged(nn.Module):
    """One group a rank, experts spread over the ranks, tokens sent there and back by all-to-all."""

    def __init__(self, mesh: DeviceMesh, bug: str) -> None:
        super().__init__()
        self.ranks, self.group, self.bug = mesh.size(), mesh.get_group(), bug
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.experts = Experts(EXPERTS // self.ranks)
        self.shared = nn.Linear(HIDDEN, HIDDEN)

    def exchange(self, x: Tensor) -> Tensor:
        return all_to_all_single_autograd(x, None, None, self.group)

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unsqueeze(0)
        dispatch, combine, _ = route(grouped, self.gate, CAPACITY - (self.bug == "capacity"))
        sent = torch.matmul(dispatch.flatten(2).transpose(1, 2), grouped).view(EXPERTS, CAPACITY, HIDDEN)
        if self.bug != "not sent":
            sent = self.exchange(sent)
        if self.bug == "order":  # experts outermost, though what arrives is ordered by sender
            done = self.experts(sent.view(-1, self.ranks, CAPACITY, HIDDEN).transpose(0, 1)).transpose(0, 1)
        else:
            done = self.experts(sent.view(self.ranks, -1, CAPACITY, HIDDEN))
        back = done.reshape(EXPERTS, CAPACITY, HIDDEN)
        if self.bug != "not returned":
            back = self.exchange(back)
        combine = combine / self.ranks if self.bug == "scale" else combine
        y = torch.matmul(combine.flatten(2), back.reshape(1, -1, HIDDEN))
        shared = self.shared(x)
        return y.reshape(x.shape) + (shared * self.ranks if self.bug == "shared" else shared)


class GroupedOutput(Grouped):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


def exchanged(ranks: int, bug: str = "") -> Report:
    with fake_mesh_world((ranks,), ("ep",)) as mesh:
        return verifycompile.verify(
            Exchanged(mesh, bug),
            (torch.randn(TOKENS // ranks, HIDDEN),),
            mesh=mesh,
            spec=GroupedOutput(ranks),
            in_placements={"x": (Shard(0),)},
            param_placements={"experts.*": (Shard(0),), "*": (Replicate(),)},
            grad_placements={"gate": (Partial(),), "shared.*": (Partial(),)},
        )


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_reached_by_all_to_all(ranks: int) -> None:
    report = exchanged(ranks)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert "grad.experts.up" in report.relations


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("bug", ["not sent", "not returned", "order", "scale", "capacity", "shared"])
def test_wrong_exchange_or_capacity_is_refuted(bug: str) -> None:
    assert exchanged(2, bug).verdict is Verdict.REFUTED


def placed(ranks: int, change: Callable[[Grouped, DeviceMesh], None] = lambda model, mesh: None) -> Report:
    """The same through DTensor: groups sharded, experts sharded, two redistributions around the experts."""
    with fake_mesh_world((ranks,), ("ep",)) as mesh:
        model = Grouped(ranks)
        experts = model.experts
        experts.up = nn.Parameter(distribute_tensor(experts.up.data, mesh, [Shard(0)]))
        experts.down = nn.Parameter(distribute_tensor(experts.down.data, mesh, [Shard(0)]))
        distribute_module(model, mesh)
        experts.register_forward_pre_hook(lambda _module, inputs: (inputs[0].redistribute(mesh, [Shard(1)]),))
        experts.register_forward_hook(lambda _module, _inputs, output: output.redistribute(mesh, [Shard(0)]))
        change(model, mesh)
        x = distribute_tensor(torch.randn(TOKENS, HIDDEN), mesh, [Shard(0)])
        return verifycompile.verify(model, (x,), mesh=mesh, spec=Grouped(ranks))


def test_experts_sharded_by_dtensor_with_auxiliary_loss() -> None:
    report = placed(2)
    assert report.verdict is Verdict.VERIFIED, str(report)


def _local_mean(model: Grouped, mesh: DeviceMesh) -> None:
    """The auxiliary loss of each rank's own tokens: the mean of products is not the product of means."""
    whole = model.forward

    def forward(x: DTensor) -> tuple[Tensor, Tensor]:
        y, _ = whole(x)
        grouped = x.to_local().view(1, -1, HIDDEN)
        dispatch, _, probabilities = route(grouped, model.gate.to_local(grad_placements=[Partial()]))
        load = dispatch.sum((0, 1, 3)) / grouped.shape[1]
        loss = (probabilities.mean((0, 1)) * load).sum() * EXPERTS
        return y, DTensor.from_local(loss, mesh, [Partial("avg")]).redistribute(mesh, [Replicate()])

    model.forward = forward


def _scaled_down_twice(model: Grouped, mesh: DeviceMesh) -> None:
    whole = model.forward

    def forward(x: DTensor) -> tuple[Tensor, Tensor]:
        y, loss = whole(x)
        return y, loss / mesh.size()

    model.forward = forward


def _partial_experts(model: Grouped, mesh: DeviceMesh) -> None:
    """Each rank's experts answer for a share of the slots of all experts."""
    model.experts.register_forward_hook(lambda _module, _inputs, output: output * (1 / mesh.size()))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("change", [_local_mean, _scaled_down_twice, _partial_experts])
def test_wrong_auxiliary_loss_or_scale_is_refuted(change: Callable[[Grouped, DeviceMesh], None]) -> None:
    assert placed(2, change).verdict is Verdict.REFUTED


class Sorted(nn.Module):
    """Tokens sorted by expert; expert weights looked up a token, their inner dimension sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) * 0.1)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        up, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.down))
        hidden = F.gelu(torch.bmm(x[order // CHOSEN].unsqueeze(1), up[flat[order]]))
        y = torch.bmm(hidden, down[flat[order]]).squeeze(1) * weights.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, order // CHOSEN, y)


def sorted_tokens(into: Any = SUM, out: Any = SUM, *, reduce: bool = True) -> Report:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Sorted()
        model.up = nn.Parameter(distribute_tensor(model.up.data, mesh, [Shard(2)]))
        model.down = nn.Parameter(distribute_tensor(model.down.data, mesh, [Shard(1)]))

        def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (DTensor.from_local(inputs[0], mesh, [Replicate()]).to_local(grad_placements=[into]),)

        def leave(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            whole = DTensor.from_local(output, mesh, [out])
            return (whole.redistribute(mesh, [Replicate()]) if reduce else whole).to_local()

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave)
        return verifycompile.verify(
            model,
            (torch.randn(TOKENS, HIDDEN, requires_grad=True),),
            spec=Sorted(),
            grad_placements={"gate": (Partial(),), "x": (Replicate(),)},
            out_placements={"output.0": (Replicate(),)},
        )


def test_tokens_sorted_by_expert() -> None:
    report = sorted_tokens()
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda: sorted_tokens(into=Replicate()), id="gradient of the tokens not summed"),
        pytest.param(lambda: sorted_tokens(out=Partial("avg")), id="mean of the parts"),
        pytest.param(lambda: sorted_tokens(reduce=False), id="parts not summed"),
    ],
)
def test_wrong_reduction_of_sorted_tokens_is_refuted(report: Callable[[], Report]) -> None:
    assert report().verdict is Verdict.REFUTED


def all_experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    weight, chosen = (x @ gate).softmax(-1).topk(1, -1)
    share = torch.zeros(x.shape[0], up.shape[0]).scatter(1, chosen, weight)
    found = torch.einsum("teh,ehd->ted", F.gelu(torch.einsum("td,edh->teh", x, up)), down)
    return torch.einsum("te,ted->td", share, found)


def own_expert(mesh: DeviceMesh, power: int) -> Callable[..., Tensor]:
    group, rank = mesh.get_group(), mesh.get_local_rank()

    def forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        x, gate = enter(x, group), enter(gate, group)
        weight, chosen = (x @ gate).softmax(-1).topk(1, -1)
        return leave(torch.where(chosen == rank, weight**power * (F.gelu(x @ up[0]) @ down[0]), 0.0), group)

    return forward


@pytest.mark.parametrize(("power", "verdict"), [(1, Verdict.VERIFIED), (2, Verdict.REFUTED)])
def test_one_expert_a_rank_where_it_is_chosen(power: int, verdict: Verdict) -> None:
    shapes = {"x": (5, 4), "gate": (4, 2), "up": (1, 4, 3), "down": (1, 3, 4)}
    with fake_mesh_world((2,), ("ep",)) as mesh:
        report = verifycompile.verify(
            build=lambda: own_expert(mesh, power),
            args=tuple(torch.randn(*shape, requires_grad=True) for shape in shapes.values()),
            spec=all_experts,
            mesh=mesh,
            in_placements={name: (Shard(0) if len(shape) == 3 else Replicate(),) for name, shape in shapes.items()},
            out_placements={"output.0": (Replicate(),)},
        )
    assert report.verdict is verdict, str(report)
