"""Tables of positions that a batch counter indexes, as masks of packed sequences do, under data parallelism."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Verdict


class Packed(nn.Module):
    """Scores under a mask that is read at [batch, position]. ``first``: where the batch counter begins."""

    def __init__(self, first: int = 0, reads: str = "expanded") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.first, self.reads = first, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape
        positions = torch.arange(length)[None].expand(batch, -1)
        if self.reads == "counted":
            positions = positions + self.first * torch.arange(batch)[:, None]
        breaks = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
        documents = breaks.cumsum(-1)
        row = torch.arange(batch)[:, None, None]
        query, key = torch.arange(length)[None, :, None], torch.arange(length)[None, None, :]
        seen = (documents[row, query] == documents[row, key]) & (positions[row, key] <= query)
        return torch.where(seen, (x * self.weight)[:, :, None] * x[:, None, :], 0.0)


@pytest.mark.parametrize(("first", "reads", "verdict"), [(0, "expanded", "verified"), (1, "counted", "refuted")])
def test_mask_read_by_batch_and_position(first: int, reads: str, verdict: str) -> None:
    """A table that differs from row to row differs between the first row of a rank and that of the whole batch."""
    with fake_mesh_world((2,), ("dp",)) as mesh:
        report = verifycompile.verify(
            Packed(first, reads),
            (torch.randn(4, 8),),
            mesh=mesh,
            in_placements={"x": (Shard(0),)},
            grad_placements={"weight": (Partial(),)},
        )
    assert report.verdict is Verdict[verdict.upper()], str(report)
