"""Losses of a sharded batch as sums divided by counts of all ranks: each term, weight and token counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Verdict

CLASSES = 5
Loss = Callable[..., torch.Tensor]
Program = Callable[[Any], Loss]


def weighted(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, t, weight=w)


def weighted_without_second_last(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, t, weight=w, ignore_index=-2)


def masked(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    kept = (t != 0).to(x.dtype)
    return ((x * w).square().mean(-1) * kept).sum() / kept.sum().clamp(min=1)


def ignoring(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x * w, t)


def balanced(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    shares = (x * w).softmax(-1)
    chosen = F.one_hot(shares.topk(2, -1).indices, CLASSES).sum((0, 1)) / len(x)
    return (chosen * shares.mean(0)).sum()


def by_map(own_count: bool, scattered: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Program:
    """The load of experts, counted in a map of who is routed where."""

    def program(group: Any) -> Loss:
        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            shares = (x * w).softmax(-1)
            chosen = scattered(shares, shares.topk(2, -1).indices).sum(0)
            chosen = 2 * chosen if own_count else comm.total(chosen, group)
            return (chosen * comm.leave(shares.sum(0), group)).sum() / (2 * len(x)) ** 2

        return loss

    return program


def by_weights(ignored: int, counted: Callable[..., torch.Tensor]) -> Program:
    def program(group: Any) -> Loss:
        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            total = F.cross_entropy(x, t, weight=w, ignore_index=ignored, reduction="sum")
            return comm.leave(total, group) / comm.total(counted(t, w).sum(), group)

        return loss

    return program


def by_mask(own_count: bool) -> Program:
    def program(group: Any) -> Loss:
        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            kept = (t != 0).to(x.dtype)
            both = torch.stack([((x * w).square().mean(-1) * kept).sum(), kept.sum()])
            total = comm.leave(both, group)
            return total[0] / (both if own_count else total)[1].clamp(min=1)

        return loss

    return program


def in_micro_batches(mean_of_means: bool) -> Program:
    def program(group: Any) -> Loss:
        def loss(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            count = comm.total((t != -100).sum(), group)
            total = x.new_zeros(())
            for rows, labels in zip(x.split(2), t.split(2), strict=True):
                if mean_of_means:
                    total = total + F.cross_entropy(rows * w, labels) / 4
                else:
                    total = total + F.cross_entropy(rows * w, labels, reduction="sum") / count
            return comm.leave(total, group)

        return loss

    return program


@pytest.mark.sampled(every=2, of=("verdict",))
@pytest.mark.parametrize(
    ("spec", "program", "verdict"),
    [
        (weighted, by_weights(-100, lambda t, w: w[t]), Verdict.VERIFIED),
        (weighted, by_weights(-100, lambda t, w: w[t.clamp(min=0)] * (t >= 0)), Verdict.VERIFIED),
        (weighted, by_weights(-100, lambda t, w: torch.ones_like(t, dtype=w.dtype)), Verdict.REFUTED),
        # An ignored class of -2 is a position of the weights, counted from their end.
        (weighted_without_second_last, by_weights(-2, lambda t, w: w[t]), Verdict.REFUTED),
        (weighted_without_second_last, by_weights(-2, lambda t, w: w[t.clamp(min=0)] * (t >= 0)), Verdict.VERIFIED),
        (masked, by_mask(own_count=False), Verdict.VERIFIED),
        (masked, by_mask(own_count=True), Verdict.REFUTED),
        (ignoring, in_micro_batches(mean_of_means=False), Verdict.VERIFIED),
        (ignoring, in_micro_batches(mean_of_means=True), Verdict.REFUTED),
        (balanced, by_map(False, lambda x, top: torch.zeros_like(x).bool().scatter(1, top, True)), Verdict.VERIFIED),
        (balanced, by_map(False, lambda x, top: torch.zeros_like(x).int().scatter(1, top, 1).bool()), Verdict.VERIFIED),
        (balanced, by_map(True, lambda x, top: torch.zeros_like(x).bool().scatter(1, top, True)), Verdict.REFUTED),
    ],
)
def test_sums_divided_by_counts_of_all_ranks(spec: Loss, program: Program, verdict: Verdict) -> None:
    rows, whole = (Shard(0),), (Replicate(),)
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            program(mesh.get_group("dp")),
            (torch.randn(4, CLASSES, requires_grad=True), torch.zeros(4, dtype=torch.int64), torch.rand(CLASSES)),
            spec=spec,
            mesh=mesh,
            in_placements={"x": rows, "t": rows, "w": whole},
            out_placements={"output.0": whole},
        )
    assert report.verdict is verdict, str(report)
