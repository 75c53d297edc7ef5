"""What is said of operands that lie on the ranks in ways that do not fit together."""

from __future__ import annotations

import torch
from torch.distributed.tensor.placement_types import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Report, Verdict, verify


def squashed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def report_of(placement: Replicate | Shard, rows: int) -> Report:
    inputs = (torch.empty(rows, 3), torch.empty(3, 2))
    placements = {"x": (placement,), "w": (Shard(1),)}
    with fake_mesh_world((2,), ("tp",)) as mesh:
        return verify(lambda x, w: squashed(x, w), inputs, spec=squashed, mesh=mesh, in_placements=placements)


def test_parts_of_rows_and_of_columns_are_told() -> None:
    report = report_of(Shard(0), 2)
    assert report.verdict is Verdict.UNPROVED  # a plain result may lie in any way
    (finding,) = report.findings
    assert finding.message == (
        "the operands of `mm` in `squashed(x, w)` are sharded in ways that do not fit together: over tp, `x` is (S(0)), "
        "`w` is (S(1))"
    )


def test_all_rows_fit_parts_of_columns() -> None:
    assert report_of(Replicate(), 4).verdict is Verdict.VERIFIED
