"""Micro-batches of a rank's samples, of several sizes, one sample alone among them, whose token counts divide once."""

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

Tensor = torch.Tensor
Net = Callable[[Tensor, Tensor, Tensor], Tensor]
WIDTH, CLASSES, SAMPLES, TOKENS = 4, 5, 4, 3


def perceptron(x: Tensor, gate: Tensor, head: Tensor) -> Tensor:
    return F.gelu(x @ gate) @ head


def attending(x: Tensor, gate: Tensor, head: Tensor) -> Tensor:
    return (x + F.scaled_dot_product_attention(x @ gate, x, x, is_causal=True)) @ head


def whole(net: Net) -> Callable[..., Tensor]:
    def loss(x: Tensor, t: Tensor, gate: Tensor, head: Tensor) -> Tensor:
        return F.cross_entropy(net(x, gate, head).transpose(1, 2), t)

    return loss


def in_pieces(net: Net, sizes: tuple[int, ...], mistake: str, group: Any) -> Callable[..., Tensor]:
    def loss(x: Tensor, t: Tensor, gate: Tensor, head: Tensor) -> Tensor:
        gate, head = comm.enter(gate, group), comm.enter(head, group)
        total, count = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for number, (rows, labels) in enumerate(zip(x.split(sizes), t.split(sizes), strict=True)):
            if mistake == "one left out" and number == 1:
                continue
            own = x[: len(rows)] if mistake == "first samples twice" and number == 1 else rows
            total = total + F.cross_entropy(net(own, gate, head).transpose(1, 2), labels, reduction="sum")
            count = count + (labels != -100).sum()
        return comm.leave(total, group) / (count if mistake == "own count" else comm.total(count, group))

    return loss


@pytest.mark.parametrize(
    ("net", "sizes", "mistake"),
    [
        (perceptron, (1, 2, 1), ""),
        (perceptron, (1, 2, 1), "one left out"),
        (perceptron, (1, 2, 1), "first samples twice"),
        (perceptron, (1, 2, 1), "own count"),
        (perceptron, (3, 1), ""),
        (perceptron, (3, 1), "first samples twice"),
        (attending, (2, 2), ""),
        (attending, (2, 2), "first samples twice"),
    ],
)
def test_samples_in_pieces(net: Net, sizes: tuple[int, ...], mistake: str) -> None:
    rows, every = (Shard(0),), (Replicate(),)
    inputs = torch.randn(SAMPLES, TOKENS, WIDTH), torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)
    weights = torch.randn(WIDTH, WIDTH, requires_grad=True), torch.randn(WIDTH, CLASSES, requires_grad=True)
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            in_pieces(net, sizes, mistake, mesh.get_group("dp")),
            (*inputs, *weights),
            spec=whole(net),
            mesh=mesh,
            in_placements={"x": rows, "t": rows, "gate": every, "head": every},
            out_placements={"output.0": every},
        )
    assert report.verdict is (Verdict.REFUTED if mistake else Verdict.VERIFIED), str(report)
