"""Weights that are joined before a product, the results cut apart again: a rank joins its parts of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard

import verifycompile
from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Verdict

RANKS = 2
Parts = Callable[[torch.Tensor, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


def apart(x: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x @ weight.t() for weight in weights)


def joined(x: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (x @ torch.cat(weights).t()).split([weight.shape[0] for weight in weights], -1)


def cut_evenly(x: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Wrong where the parts have different lengths, and cut to the right ones afterwards."""
    sizes = [weight.shape[0] for weight in weights]
    y = x @ torch.cat(weights).t()
    return tuple(y[..., k : k + size] for k, size in enumerate(sizes))


def another_order(x: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    first, second, third = joined(x, (weights[0], weights[2], weights[1]))
    return first, second, third


class Attention(nn.Module):
    """Queries of all heads; one head of keys and values for each group of queries."""

    def __init__(self, parts: Parts, ranks: int, group: object = None) -> None:
        super().__init__()
        self.parts, self.group = parts, group
        self.query, self.key, self.value, self.out = (
            nn.Parameter(torch.randn(*shape))
            for shape in ((16 // ranks, 6), (4 // ranks, 6), (4 // ranks, 6), (6, 16 // ranks))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        query, key, value = self.parts(
            x if self.group is None else comm.enter(x, self.group), (self.query, self.key, self.value)
        )
        keys = value.shape[-1] // 2
        query = query.reshape(rows, keys, -1, 2)
        scores = torch.einsum("ikgd,jkd->kgij", query, key.reshape(rows, keys, 2))
        found = torch.einsum("kgij,jkd->ikgd", F.softmax(scores, -1), value.reshape(rows, keys, 2))
        result = found.reshape(rows, -1) @ self.out.t()
        return result if self.group is None else comm.leave(result, self.group)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("spec", "program", "verdict"),
    [
        (apart, joined, Verdict.VERIFIED),
        (joined, apart, Verdict.VERIFIED),
        (joined, joined, Verdict.VERIFIED),
        (joined, another_order, Verdict.REFUTED),
        (apart, cut_evenly, Verdict.REFUTED),
    ],
)
def test_queries_keys_and_values_by_one_product(spec: Parts, program: Parts, verdict: Verdict) -> None:
    columns, rows = (Shard(1),), (Shard(0),)
    with fake_mesh_world((RANKS,), ("tp",)) as mesh:
        report = verifycompile.verify(
            None,
            (torch.randn(5, 6, requires_grad=True),),
            build=lambda: Attention(program, RANKS, mesh.get_group("tp")),
            spec=Attention(spec, 1),
            mesh=mesh,
            param_placements={"query": rows, "key": rows, "value": rows, "out": columns},
        )
    assert report.verdict is verdict, str(report)
