"""A recovered spec that leaves out what the ranks read was recovered from numbers that count one rank's own samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import verifycompile
from tests.support import fake_mesh_world
from verifycompile import Report, Verdict

SAMPLES = (torch.randn(4, 8), torch.randn(4, 8))


class InParts(nn.Module):
    """The mean over parts of the batch; ``length`` is that of a part where it is written down."""

    def __init__(self, length: int | None, count: int = 2, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.parts = (length, count, scale)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length, count, scale = self.parts
        length = x.shape[0] // count if length is None else length
        loss = torch.zeros(())
        for part in range(count):
            own = slice(part * length, (part + 1) * length)
            loss = loss + F.mse_loss(self.layer(x[own]), y[own]) / count
        return loss * scale


def report_on(model: InParts, spec: nn.Module | None = None) -> Report:
    with fake_mesh_world((2,), ("dp",)) as mesh:
        return verifycompile.verify(fully_shard(model, mesh=mesh), SAMPLES, spec=spec)


def test_a_length_that_is_written_down_is_a_choice() -> None:
    report = report_on(InParts(2))
    assert report.verdict is Verdict.UNPROVED
    assert [finding.code for finding in report.findings] == ["VC209"]
    assert report.findings[0].message == (
        "the spec as it was recovered does not read positions 4 to 7 of dimension 0 of `x`, of which each rank reads all "
        "that it has: a number in the program may count what one rank has. Compute it from the size of the input, or pass "
        "the single-device program as the option `spec`."
    )


def test_with_either_remedy_it_is_verified() -> None:
    assert report_on(InParts(2), InParts(2, 4)).verdict is Verdict.VERIFIED
    assert report_on(InParts(None)).verdict is Verdict.VERIFIED


def test_a_mistake_is_refuted_with_either_remedy() -> None:
    assert report_on(InParts(2, scale=2.0), InParts(2, 4)).verdict is Verdict.REFUTED
    assert report_on(InParts(2, 1), InParts(2, 4)).verdict is Verdict.REFUTED


def test_what_the_ranks_do_not_read_either_is_no_choice() -> None:
    report = report_on(InParts(2, 1))
    assert report.verdict is Verdict.REFUTED
