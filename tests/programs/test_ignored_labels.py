"""Cross entropy that ignores labels, written by hand over a sharded vocabulary: ignored labels look up some row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard

from tests.programs.forms import comm
from tests.support import fake_mesh_world
from verifycompile import Verdict, verify

Tensor = torch.Tensor
TOKENS, WIDTH, ROWS, RANKS = 3, 4, 3, 2

KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "not -100": lambda t: t != -100,
    "from 0 on": lambda t: t >= 0,
    "above -1": lambda t: t > -1,
    "not below 0": lambda t: ~(t < 0),
    "from 1 on": lambda t: t >= 1,
    "all": torch.ones_like,
}
ROW_OF: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "limited": lambda t, kept: t.clamp(min=0),
    "filled": lambda t, kept: t.masked_fill(~kept, 0),
    "chosen": lambda t, kept: torch.where(kept, t, torch.zeros_like(t)),
    "absolute": lambda t, kept: torch.where(kept, t, t + 101),
    "shifted": lambda t, kept: (t + 1).clamp(min=0),
}


def whole(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(h @ w.T, t)


def by_hand(kept_of: str, row_of: str, mesh: Any) -> Callable[..., Tensor]:
    group = mesh.get_group()

    def loss(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
        logits = comm.enter(h, group) @ w.T
        total = comm.leave(logits.exp().sum(-1), group).log()
        kept = KEPT[kept_of](t).bool()
        row = ROW_OF[row_of](t, kept) - mesh.get_local_rank() * ROWS
        own = (row >= 0) & (row < ROWS)
        found = logits.gather(1, row.clamp(0, ROWS - 1)[:, None])[:, 0]
        each = total - comm.leave(torch.where(own, found, 0.0), group)
        return (each * kept).sum() / kept.sum()

    return loss


@pytest.mark.parametrize(
    ("kept_of", "row_of", "verdict"),
    [
        ("not -100", "limited", Verdict.VERIFIED),
        ("from 0 on", "limited", Verdict.VERIFIED),
        ("above -1", "filled", Verdict.VERIFIED),
        ("not below 0", "chosen", Verdict.VERIFIED),
        ("from 0 on", "absolute", Verdict.VERIFIED),
        ("from 1 on", "limited", Verdict.REFUTED),
        ("all", "limited", Verdict.REFUTED),
        ("from 0 on", "shifted", Verdict.REFUTED),
    ],
)
def test_ignored_labels(kept_of: str, row_of: str, verdict: Verdict) -> None:
    every = (Replicate(),)
    inputs = torch.randn(TOKENS, WIDTH), torch.randn(ROWS, WIDTH), torch.randint(0, ROWS * RANKS, (TOKENS,))
    with fake_mesh_world((RANKS,), ("tp",)) as mesh:
        report = verify(
            by_hand(kept_of, row_of, mesh),
            tuple(x.requires_grad_(x.is_floating_point()) for x in inputs),
            spec=whole,
            mesh=mesh,
            in_placements={"h": every, "w": (Shard(0),), "t": every},
            out_placements={"output.0": every},
        )
    assert report.verdict is verdict, str(report)
    assumed = any("are -100 or within [0, 6)" in str(assumption) for assumption in report.assumptions)
    assert assumed or verdict is Verdict.REFUTED
