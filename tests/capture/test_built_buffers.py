"""Buffers of which ranks hold parts, in the models that `build` makes: each must be that of a given spec."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile import Verdict, verify

WORLD = 2
PART = Shard(0)


class Slopes(nn.Module):
    """A number for each head, as in attention with linear biases; ``first`` is a rank's first head."""

    slopes: torch.Tensor

    def __init__(self, heads: int, first: int, scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("slopes", scale * 2.0 ** -torch.arange(first + 1.0, first + heads + 1.0))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.slopes[:, None] * torch.arange(3.0)


def checked(first_of: Any, spec: nn.Module, placement: Any = PART) -> Any:
    heads = 4 if placement == Replicate() else 2
    with fake_mesh_world((WORLD,), ("tp",)) as mesh:

        def build() -> nn.Module:
            return Slopes(heads, first_of(mesh.get_local_rank()))

        scores = torch.randn(heads, 3, requires_grad=True)
        placements = {"in_placements": {"scores": (placement,)}, "out_placements": {"output.0": (placement,)}}
        return verify(
            build(), (scores,), spec=spec, mesh=mesh, build=build, param_placements={"slopes": (placement,)}, **placements
        )


def test_parts_of_the_spec_s_buffer() -> None:
    assert checked(lambda rank: 2 * rank, Slopes(4, 0)).verdict is Verdict.VERIFIED
    assert checked(lambda rank: 0, Slopes(4, 0), Replicate()).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("first_of", [lambda rank: 0, lambda rank: 3 * rank], ids=["own heads", "a head left out"])
def test_another_part_on_another_rank_is_named(first_of: Any) -> None:
    report = checked(first_of, Slopes(4, 0))
    assert report.verdict is Verdict.UNPROVED
    assert [finding.message for finding in report.findings] == [
        "buffer `slopes` holds other values than the spec's part in the model that `build` makes on rank 1."
    ]


def test_another_buffer_on_this_rank_is_named() -> None:
    report = checked(lambda rank: 2 * rank, Slopes(4, 0, scale=2.0))
    assert report.verdict is Verdict.UNPROVED
    assert report.findings[0].message == "buffer `slopes` holds other values in the spec than in the model."
