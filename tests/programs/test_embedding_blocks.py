"""A table over the vocabulary in front of nonlinear blocks: its gradient is the whole one's, whatever follows it.

The gradient of a shard is masked, and what it masks holds look-ups of the same ids wherever a block reads them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

import verifycompile
from tests.programs.forms import comm
from tests.programs.forms.vocabulary import VOCABULARY, WIDTH, Table, WholeTable, words
from tests.support import fake_mesh_world
from verifycompile import Verdict


class Blocks(nn.Module):
    """A table, then residual blocks of a norm, a product and a gate."""

    def __init__(self, table: nn.Module, depth: int) -> None:
        super().__init__()
        self.table = table
        self.weights = nn.ParameterList([torch.randn(WIDTH, WIDTH) for _ in range(depth)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.table(ids)
        for weight in self.weights:
            h = h + F.silu(F.rms_norm(h, (WIDTH,)) @ weight)
        return h


class TableOnBothAxes(nn.Module):
    """Shards of the table are numbered over both axes of the mesh."""

    def __init__(self, mesh: DeviceMesh, mistake: str) -> None:
        super().__init__()
        self.mesh, self.mistake = mesh, mistake
        self.weight = nn.Parameter(torch.randn(VOCABULARY // mesh.size(), WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outer, inner = self.mesh.get_local_rank("outer"), self.mesh.get_local_rank("inner")
        number = inner * 2 + outer if self.mistake else outer * 2 + inner
        start = number * self.weight.shape[0]
        outside = (ids < start) | (ids >= start + self.weight.shape[0])
        found = self.weight[(ids - start).masked_fill(outside, 0)].masked_fill(outside.unsqueeze(-1), 0.0)
        return comm.leave(comm.leave(found, self.mesh.get_group("inner")), self.mesh.get_group("outer"))


def verdict(mesh: DeviceMesh, build: Any, depth: int, **options: Any) -> Verdict:
    return verifycompile.verify(
        None, (words(),), build=build, spec=Blocks(WholeTable(), depth), mesh=mesh, **options
    ).verdict


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("style", "depth", "mistake"),
    [
        *((style, 2, "") for style in ("masked_index", "one_hot", "selected", "taken", "remainder")),
        ("clamped", 6, ""),
        ("clamped", 2, "start of the next rank"),
        ("one_hot", 2, "reduced twice"),
    ],
)
def test_table_in_front_of_blocks(style: str, depth: int, mistake: str) -> None:
    with fake_mesh_world((2,), ("tp",)) as mesh:
        found = verdict(
            mesh,
            lambda: Blocks(Table(mesh, style, mistake), depth),
            depth,
            param_placements={"table.weight": (Shard(0),)},
        )
    assert found is (Verdict.REFUTED if mistake else Verdict.VERIFIED)


@pytest.mark.parametrize("mistake", ["", "not reduced"])
def test_beside_data_parallel_ranks(mistake: str) -> None:
    rows, summed = (Shard(0), Replicate()), (Partial(), Replicate())
    with fake_mesh_world((2, 2), ("dp", "tp")) as mesh:
        found = verdict(
            mesh,
            lambda: Blocks(Table(mesh, "masked_index", mistake), 2),
            2,
            in_placements={"ids": rows},
            out_placements={"output.0": rows},
            param_placements={"table.weight": (Replicate(), Shard(0))},
            grad_placements={"table.weight": (Partial(), Shard(0)), "weights.0": summed, "weights.1": summed},
        )
    assert found is (Verdict.REFUTED if mistake else Verdict.VERIFIED)


@pytest.mark.parametrize("mistake", ["", "axes exchanged"])
def test_table_on_both_axes_of_a_mesh(mistake: str) -> None:
    with fake_mesh_world((2, 2), ("outer", "inner")) as mesh:
        found = verdict(
            mesh,
            lambda: Blocks(TableOnBothAxes(mesh, mistake), 2),
            2,
            param_placements={"table.weight": (Shard(0), Shard(0))},
        )
    assert found is (Verdict.REFUTED if mistake else Verdict.VERIFIED)
