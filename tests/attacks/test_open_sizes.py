"""Ranks that run different graphs are compared for sizes that are known; where one is left open, a sentence says so."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict


class ByRank(nn.Module):
    """Ranks that run different graphs: the first doubles by adding. ``wrong``: another factor there."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.adds = dist.get_rank() == 0
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return (y + y if not self.wrong else y + y + y) if self.adds else y * 2


@pytest.mark.parametrize("wrong", [False, True])
def test_ranks_that_run_different_graphs_of_sizes_that_are_left_open(wrong: bool) -> None:
    sentence = (
        "the ranks run different graphs, which can be compared for sizes that are known, and a size of `x` is left open; "
        "compile with `dynamic=False`, or mark its dimensions as static."
    )
    with fake_mesh_world((2,), ("tp",)) as mesh:

        def asked(x: torch.Tensor) -> verifycompile.Report:
            build = functools.partial(ByRank, wrong)
            return verifycompile.verify(build(), (x,), mesh=mesh, build=build, spec=lambda x: 2 * x.sin())

        known, open_size = torch.randn(4, 8), torch.randn(4, 8)
        torch._dynamo.mark_dynamic(open_size, 0)
        assert asked(known).verdict is (Verdict.REFUTED if wrong else Verdict.VERIFIED)
        report = asked(open_size)
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].code == "VC206"
    assert sentence in str(report)
