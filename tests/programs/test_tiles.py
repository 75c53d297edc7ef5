"""Images cut into parts on the ranks, under operators whose windows stand side by side: each is computed in its part."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Shard

from tests.support import fake_mesh_world
from verifycompile import Verdict, verify
from verifycompile.ir.algebra import iota
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.quotients import truncated_share


class Tiles(nn.Module):
    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 3, 1)
        self.down = nn.Conv2d(3, 4, 2, stride=2)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.mistake = mistake

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.enter(x.flip(2) if self.mistake == "turned" else x)
        coarse = F.silu(self.down(first))
        pooled = F.interpolate(F.avg_pool2d(coarse, 2), scale_factor=2, mode="nearest")
        result = self.up(coarse + pooled)
        return torch.cat([result.roll(1, 2) if self.mistake == "rolled" else result, first], 1) * (
            2 if self.mistake == "scaled" else 1
        )


def verdict(mistake: str) -> Verdict:
    place, both = (Shard(2), Shard(3)), (Partial(), Partial())
    names = [name for name, _ in Tiles().named_parameters()]
    with fake_mesh_world((2, 2), ("rows", "columns")) as mesh:
        report = verify(
            Tiles(mistake),
            (torch.randn(1, 2, 4, 4).requires_grad_(),),
            spec=Tiles(),
            mesh=mesh,
            in_placements={"x": place},
            out_placements={"output.0": place},
            grad_placements=dict.fromkeys(names, both),
        )
    return report.verdict


def test_parts_of_images() -> None:
    assert verdict("") is Verdict.VERIFIED


@pytest.mark.parametrize("mistake", ["turned", "rolled", "scaled"])
def test_mistakes(mistake: str) -> None:
    assert verdict(mistake) is Verdict.REFUTED


def test_whole_part_of_a_share_of_a_counter() -> None:
    builder = Builder(TermPool())
    counter = iota(builder.pool, 6)
    half = truncated_share(builder, counter.scaled(Fraction(1, 2)))
    assert half is not None
    assert half.term is iota(builder.pool, 3).term
    assert half.axes == (((0, 2, 3),),)
    for share in (Fraction(1, 4), Fraction(1, 3), Fraction(3, 2), Fraction(-1, 2)):
        assert truncated_share(builder, counter.scaled(share)) is None
