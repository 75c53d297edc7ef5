"""Attention in one operator, by heads and by rows: what functions of scores, positions and boundaries say is proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict

LOWEST = -float("inf")
HEADS, RANKS = (Shard(1),), 2
Attention = Callable[..., Any]


def whole(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value)


def causal(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, LOWEST))


def strictly_causal(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: torch.where(i > j, s, LOWEST))


def in_blocks(query: Any, key: Any, value: Any) -> Any:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")
    return flex_attention(query, key, value, block_mask=mask)


def capped(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5))


def scaled(query: Any, key: Any, value: Any) -> Any:
    return flex_attention(query, key, value, scale=0.5)


def biased(first: Callable[[], int]) -> Attention:
    """Each head falls off with the distance at a rate of its own."""

    def attention(query: Any, key: Any, value: Any) -> Any:
        head = first()
        return flex_attention(
            query, key, value, score_mod=lambda s, b, h, i, j: s + (i - j) * torch.exp2(-(h + head + 1.0))
        )

    return attention


def first_head() -> int:
    return dist.get_rank() * 2


def plain(query: Any, key: Any, value: Any) -> Any:
    return F.scaled_dot_product_attention(query, key, value)


def plain_causal(query: Any, key: Any, value: Any) -> Any:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def behind_prefix(length: int) -> Attention:
    """The first positions are seen by all others."""

    def attention(query: Any, key: Any, value: Any) -> Any:
        return flex_attention(
            query, key, value, score_mod=lambda s, b, h, i, j: torch.where((i >= j) | (j < length), s, LOWEST)
        )

    return attention


def plain_behind_prefix(query: Any, key: Any, value: Any) -> Any:
    place = torch.arange(query.shape[-2])
    hidden = (place[None] > place[:, None]) & (place >= 4)
    return (query @ key.mT / 8**0.5).masked_fill(hidden, LOWEST).softmax(-1) @ value


PROGRAMS = [
    (whole, whole, True),
    (causal, causal, True),
    (in_blocks, in_blocks, True),
    (capped, capped, True),
    (plain, whole, True),
    (plain_causal, causal, True),
    (plain_causal, in_blocks, True),
    (causal, in_blocks, True),
    (biased(lambda: 0), biased(first_head), True),
    (plain_behind_prefix, behind_prefix(4), True),
    (plain_behind_prefix, behind_prefix(5), False),
    (whole, scaled, False),
    (causal, strictly_causal, False),
    (plain_causal, whole, False),
    (plain, capped, False),
    (biased(lambda: 0), biased(lambda: 0), False),
]


def report_of(spec: Attention, program: Attention, *, trains: bool) -> verifycompile.Report:
    with fake_mesh_world((RANKS,), ("tp",)) as mesh:
        return verifycompile.verify(
            None,
            tuple(torch.randn(1, 4 // RANKS, 16, 8, requires_grad=trains) for _ in range(3)),
            build=lambda: program,
            spec=spec,
            mesh=mesh,
            in_placements={"query": HEADS, "key": HEADS, "value": HEADS},
            out_placements={"output.0": HEADS},
        )


@pytest.mark.sampled(every=4, of=("right",))
@pytest.mark.parametrize(("spec", "program", "right"), PROGRAMS)
def test_heads_of_a_rank(spec: Attention, program: Attention, right: bool) -> None:
    report = report_of(spec, program, trains=False)
    assert report.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(report)


@pytest.mark.parametrize(("program", "right"), [(capped, True), (whole, False)])
def test_gradients_on_a_cpu_that_has_no_kernel_for_them(program: Attention, right: bool) -> None:
    report = report_of(capped, program, trains=True)
    assert "grad.key" in report.relations or not right
    assert report.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(report)


class Packed(nn.Module):
    """Sequences one behind the other; each row attends to those before it in its own sequence."""

    def __init__(self, backward: int = -1) -> None:
        super().__init__()
        self.queries, self.keys, self.values, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.backward = backward

    def forward(self, x: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        query, key, value = (of(x).unflatten(-1, (-1, 4)) for of in (self.queries, self.keys, self.values))
        return self.out(varlen_attn(query, key, value, bounds, bounds, 6, 6, window_size=(self.backward, 0)).flatten(1))


@pytest.mark.parametrize(("backward", "right"), [(-1, True), (3, False)])
def test_heads_of_packed_sequences(backward: int, right: bool) -> None:
    columns = dict.fromkeys(("queries", "keys", "values"), ColwiseParallel())
    with fake_mesh_world((RANKS,), ("tp",)) as mesh:
        model = parallelize_module(Packed(backward), mesh, {**columns, "out": RowwiseParallel()})
        bounds = torch.tensor([0, 4, 10], dtype=torch.int32)
        report = verifycompile.verify(model, (torch.randn(10, 16), bounds), spec=Packed())
    assert report.verdict is (Verdict.VERIFIED if right else Verdict.REFUTED), str(report)
