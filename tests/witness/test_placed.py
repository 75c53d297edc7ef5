"""Placements are told on the axes that the user named."""

from __future__ import annotations

import pytest
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from verifycompile.capture.refine_mesh import refine
from verifycompile.program import Mesh, MeshAxis
from verifycompile.witness.placed import describe_placements

R, S0, S1 = Replicate(), Shard(0), Shard(1)
MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)), tuple(range(8)))


@pytest.mark.parametrize(
    ("placements", "text"),
    [
        ([S0, R], "Shard(0) over dp, Replicate over tp"),
        ([S1, S1], "Shard(1) over dp and tp"),
        ([_StridedShard(0, split_factor=4), S0], "Shard(0) in each of 4 blocks over dp, Shard(0) over tp"),
        ([Partial(), Partial("max")], "Partial(sum) over dp, Partial(max) over tp"),
    ],
)
def test_whole_axes(placements, text):
    assert describe_placements(placements, MESH) == text


@pytest.mark.parametrize(
    ("placements", "text"),
    [
        ([R, S0, S0], "Replicate over dp, Shard(0) over tp"),
        ([R, R, R], "Replicate over dp and tp"),
        ([R, S0, R], "Replicate over dp, Shard(0), Replicate over tp as 2 x 2 ranks"),
    ],
)
def test_an_axis_that_was_cut_for_the_proof(placements, text):
    cut = refine(MESH, [(0, 1)]).mesh
    assert [axis.name for axis in cut.axes] == ["dp", "tp.0", "tp.1"]
    assert describe_placements(placements, cut) == text
