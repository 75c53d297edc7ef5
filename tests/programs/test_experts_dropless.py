"""Experts that take every token sent to them: tokens sorted by expert, exchanged between ranks, and put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

HIDDEN, INNER, EXPERTS, CHOSEN, TOKENS = 8, 16, 4, 2, 8
SUM = Partial()


class Experts(nn.Module):
    """The whole layer on one device, or a rank's tokens and experts where there is a mesh."""

    def __init__(self, mesh: DeviceMesh | None = None, bug: str = "") -> None:
        super().__init__()
        self.mesh, self.bug, self.ranks = mesh, bug, mesh.size() if mesh is not None else 1
        own = EXPERTS // self.ranks
        self.gate = nn.Parameter(torch.randn(HIDDEN, EXPERTS))
        self.up = nn.Parameter(torch.randn(own, HIDDEN, INNER))
        self.down = nn.Parameter(torch.randn(own, INNER, HIDDEN))

    def compute(self, x: Tensor, counts: Tensor) -> Tensor:
        ends = counts.cumsum(0).to(torch.int32)
        hidden = F.silu(torch._grouped_mm(x.bfloat16(), self.up.bfloat16(), offs=ends))
        return torch._grouped_mm(hidden, self.down.bfloat16(), offs=ends).float()

    def exchanged(self, x: Tensor, counts: Tensor, experts: Tensor) -> Tensor:
        assert self.mesh is not None
        group = self.mesh.get_group()
        arriving = all_to_all_single(counts, None, None, group)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = arriving.view(self.ranks, -1).sum(1).tolist()
        if self.bug == "sizes of the other direction":
            sent, received = received, sent
        x = all_to_all_single_autograd(x, received, sent, group)
        own = all_to_all_single(experts + (self.bug == "the next expert"), received, sent, group) % self.up.shape[0]
        order = torch.argsort(own, stable=True)
        y = self.compute(x if self.bug == "not grouped" else x[order], arriving.view(self.ranks, -1).sum(0))
        back = y if self.bug == "order of arrival not restored" else torch.zeros_like(y).index_put((order,), y)
        if self.bug == "grouped twice":
            back = y[order]
        if self.bug == "mean over ranks":
            back = back / self.ranks
        return all_to_all_single_autograd(back, sent, received, group)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        if self.bug == "weights applied twice":
            weights = weights * weights
        flat = chosen.view(-1)
        order = torch.argsort(flat, stable=True)
        counts = F.one_hot(flat, EXPERTS).sum(0)
        rows = x[order // CHOSEN]
        y = self.compute(rows, counts) if self.mesh is None else self.exchanged(rows, counts, flat[order])
        slots = x.new_zeros(flat.shape[0], HIDDEN).index_put((order,), y)
        return torch.bmm(weights.unsqueeze(1), slots.view(-1, CHOSEN, HIDDEN)).squeeze(1)


class OneByOne(Experts):
    """Each expert over its part of the tokens."""

    def compute(self, x: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.tolist()
        parts = torch.split(x, sizes)
        return torch.cat([F.silu(part @ self.up[k]) @ self.down[k] for k, part in enumerate(parts)])


class TokenSlots(Experts):
    """One device's tokens, each expert adding to the tokens that chose it, with ``torch.where``."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        result = torch.zeros_like(x)
        for k in range(EXPERTS):
            token, slot = torch.where(chosen == k)
            y = F.silu(x[None, token].reshape(-1, HIDDEN) @ self.up[k]) @ self.down[k]
            y = y * weights[token, slot].unsqueeze(-1) * (2 if self.bug == "scale" else 1)
            result[token] += y
        return result


class Sharded(Experts):
    """All tokens by a part of every expert's inner size, parts of a sum; put back by the inverse of the order."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        numbers, order = torch.sort(chosen.view(-1))
        counts = torch.histc(numbers.float(), EXPERTS, 0, EXPERTS - 1)
        y = self.compute(x[order // CHOSEN], counts)
        y = y * weights.reshape(-1)[order if self.bug != "weights" else order.flip(0)].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0]).flip(0) if self.bug == "places" else torch.arange(order.shape[0])
        slots = y[order if self.bug == "order" else inverse]
        return slots.view(-1, CHOSEN, HIDDEN).sum(1)


def sharded(bug: str = "") -> Report:
    """Two ranks have all tokens and half of each expert."""
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = Sharded(mesh, bug)
        model.up = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER // 2))
        model.down = nn.Parameter(torch.randn(EXPERTS, INNER // 2, HIDDEN))
        return verifycompile.verify(
            model,
            (torch.randn(TOKENS, HIDDEN),),
            mesh=mesh,
            spec=Sharded(),
            param_placements={"gate": (Replicate(),), "up": (Shard(2),), "down": (Shard(1),)},
            grad_placements={"gate": (Partial(),), "up": (Shard(2),), "down": (Shard(1),)},
            out_placements={"output.0": (Partial(),)},
        )


def test_sharded_experts_with_rows_put_back_by_the_inverse_of_the_order() -> None:
    report = sharded()
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("bug", ["weights", "places", "order"])
def test_rows_put_elsewhere_are_not_verified(bug: str) -> None:
    assert sharded(bug).verdict is not Verdict.VERIFIED


def spans(ends: Tensor) -> list[slice]:
    stops = ends.tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


@torch.library.custom_op("verifycompile_experts::grouped", mutates_args=())
def grouped(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """As a library brings its own grouped product along."""
    result = rows.new_zeros(rows.size(0), matrices.size(2))
    for span, matrix in zip(spans(ends), matrices, strict=True):
        result[span] = rows[span] @ matrix
    return result


@torch.library.custom_op("verifycompile_experts::grouped_backward", mutates_args=())
def grouped_backward(rows: Tensor, matrices: Tensor, ends: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    outer = [rows[span].T @ gradient[span] for span in spans(ends)]
    return grouped(gradient, matrices.transpose(1, 2), ends), torch.stack(outer)


grouped.register_fake(lambda rows, matrices, ends: rows.new_empty(rows.size(0), matrices.size(2)))
grouped_backward.register_fake(lambda rows, matrices, *_: (torch.empty_like(rows), torch.empty_like(matrices)))
grouped.register_autograd(
    lambda ctx, gradient: (*grouped_backward(*ctx.saved_tensors, gradient), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Inverted(Experts):
    """Gated experts over rows sorted by expert, counted by a histogram, put back by the inverse permutation."""

    def __init__(self, mesh: DeviceMesh | None = None, bug: str = "") -> None:
        super().__init__(mesh, bug)
        self.bias = nn.Parameter(torch.randn(EXPERTS, INNER))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.gate).softmax(-1).topk(CHOSEN, -1)
        keys, order = torch.sort(chosen.reshape(-1))
        ends = torch.histc(keys.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
        gate, up = (grouped(x[order // CHOSEN], self.up, ends) + self.bias[keys]).chunk(2, -1)
        hidden = F.silu(gate) * up
        if self.bug == "scale":
            hidden = hidden * 2
        y = grouped(hidden, self.down[:, ::2], ends) * weights.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0))
        if self.bug == "sorted twice":
            inverse = order
        return y[inverse].view(-1, CHOSEN, HIDDEN).sum(1)


def verified(kind: type[Experts], bug: str = "", *, spread: bool = True, summed: Any = SUM) -> Report:
    """Each of two ranks has half of the tokens; ``spread``: and half of the experts, else all of them."""
    with fake_mesh_world((2,), ("ep",)) as mesh:
        experts: Any = Shard(0) if spread else Replicate()
        return verifycompile.verify(
            kind(mesh if spread else None, bug),
            (torch.randn(TOKENS // 2, HIDDEN, requires_grad=True),),
            mesh=mesh,
            spec=kind(),
            in_placements={"x": (Shard(0),)},
            param_placements={"gate": (Replicate(),), "*": (experts,)},
            grad_placements={"gate": (Partial(),), "*": (experts if spread else summed,), "x": (Shard(0),)},
            out_placements={"output.0": (Shard(0),)},
        )


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", [Experts, OneByOne])
def test_tokens_sent_to_their_experts(kind: type[Experts]) -> None:
    report = verified(kind)
    assert report.verdict is Verdict.VERIFIED, str(report)
    assert {"grad.gate", "grad.up", "grad.down", "grad.x"} <= report.relations.keys()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "bug",
    [
        "not grouped", "the next expert", "order of arrival not restored", "grouped twice", "mean over ranks",
        "weights applied twice",
    ],
)  # fmt: skip
def test_wrong_exchange_is_refuted(bug: str) -> None:
    assert verified(Experts, bug).verdict is Verdict.REFUTED


def test_an_exchange_that_torch_refuses_is_not_verified() -> None:
    assert verified(Experts, "sizes of the other direction").verdict is Verdict.UNPROVED


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", [OneByOne, TokenSlots, Inverted])
def test_tokens_of_each_rank_by_all_experts(kind: type[Experts]) -> None:
    report = verified(kind, spread=False)
    assert report.verdict is Verdict.VERIFIED, str(report)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("kind", "bug"), [(TokenSlots, "scale"), (Inverted, "scale"), (Inverted, "sorted twice")])
def test_wrong_scale_or_order_of_tokens_is_refuted(kind: type[Experts], bug: str) -> None:
    assert verified(kind, bug, spread=False).verdict is Verdict.REFUTED


def test_a_gradient_of_experts_that_is_not_summed_is_refuted() -> None:
    report = verified(Inverted, spread=False, summed=Replicate())
    assert report.verdict is Verdict.REFUTED
    assert report.findings[0].code == "VC101"
    assert report.findings[0].counterexample is not None
