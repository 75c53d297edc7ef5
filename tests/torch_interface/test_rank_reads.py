"""Rank numbers that torch itself makes constants of a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor._collective_utils
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.ranks.rank_reads import watch_rank_reads


def test_reads_by_torch_itself() -> None:
    def function(x: DTensor) -> DTensor:
        return x.redistribute(placements=[Shard(1)]) * 2

    def use(traced: TracedFrame) -> Any:
        return export_joint(traced.graph, traced.example_inputs).rank_reads

    # On a CPU mesh torch replaces the all-to-all of uneven shards by an all-gather and its own rank's chunk.
    with fake_mesh_world((4,), ("tp",), rank=2) as mesh:
        reads = trace_frame(frame_of_call(function, (distribute_tensor(torch.ones(8, 6), mesh, [Shard(0)]),), {}), use)
        assert "get_local_rank" in {read.reader for read in reads}
        assert all("x.redistribute(placements=[Shard(1)])" in (read.stack_trace or "") for read in reads)


def test_coordinate_operators_are_no_reads() -> None:
    def use(traced: TracedFrame) -> Any:
        return export_joint(traced.graph, traced.example_inputs).rank_reads

    with fake_mesh_world((4,), ("tp",), rank=2) as mesh:
        whole = distribute_tensor(torch.ones(8, 12), mesh, [Replicate()])
        frame = frame_of_call(lambda x: x.redistribute(placements=[Shard(1)]) * 2, (whole,), {})
        assert trace_frame(frame, use) == ()


def test_watching_leaves_torch_as_it_was() -> None:
    with fake_mesh_world((4,), ("tp",), rank=2) as mesh:
        before = dict(vars(DeviceMesh)), dist.distributed_c10d._rank_not_in_group
        with watch_rank_reads() as reads:
            assert mesh.get_coordinate() == (2,)
            assert mesh.get_local_rank() == 2
            assert mesh.get_coordinate()[0] == 2  # type: ignore[index]
        assert [read.reader for read in reads] == ["get_local_rank", "coordinate"]
        assert (dict(vars(DeviceMesh)), dist.distributed_c10d._rank_not_in_group) == before
        assert type(mesh.get_coordinate()) is tuple


@pytest.mark.parametrize(("dim", "readers"), [(0, set()), (3, {"tp_convolution_backward"})])
def test_convolutions_read_the_rank_where_they_exchange_borders(dim: int, readers: set[str]) -> None:
    """Forward they take whatever is cut in space for a batch, and exchange nothing: pytorch#191926."""

    def function(x: DTensor, weight: DTensor) -> DTensor:
        return torch.nn.functional.conv2d(x, weight, padding=1)

    with fake_mesh_world((2,), ("dp",)) as mesh:
        x = DTensor.from_local(torch.ones(2, 3, 4, 4), mesh, [Shard(dim)], run_check=False)
        weight = distribute_tensor(torch.ones(3, 3, 3, 3), mesh, [Replicate()]).requires_grad_()
        frame = frame_of_call(function, (x, weight), {})
        reads = trace_frame(frame, lambda traced: export_joint(traced.graph, traced.example_inputs).rank_reads)
    assert {r.reader for r in reads} == readers
