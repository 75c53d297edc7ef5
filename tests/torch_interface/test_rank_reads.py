"""Rank numbers that become constants of a graph."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor._collective_utils
from torch._guards import TracingContext
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.support import fake_mesh_world, fake_world
from verifycompile.torch_interface.aot import export_joint
from verifycompile.torch_interface.dynamo import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.rank_reads import (
    guarded_sources,
    is_rank_reader,
    reads_in_code,
    reads_in_traced_code,
    watch_rank_reads,
)


def inner(x: torch.Tensor) -> torch.Tensor:
    return x * dist.get_rank()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x, mesh: x * dist.get_rank(), "get_rank"),
        (lambda x, mesh: x * mesh.get_local_rank(), "get_local_rank"),
        (lambda x, mesh: x * mesh.get_coordinate()[0], "get_coordinate"),
        (lambda x, mesh: x * mesh.get_group().rank(), "rank"),
        (lambda x, mesh: inner(x), "get_rank"),
    ],
)
def test_reads_in_the_users_code(function: Callable[..., Any], name: str) -> None:
    with fake_mesh_world((4,), ("tp",), rank=2) as mesh:
        frame = frame_of_call(function, (torch.ones(2), mesh), {})
        reads = trace_frame(frame, lambda traced: reads_in_traced_code(traced.context))
        assert [read.name for read in reads] == [name]
        assert reads[0].file == __file__


def test_an_attribute_called_rank_is_no_read() -> None:
    class Adapter(torch.nn.Module):
        rank = 4

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / self.rank

    frame = frame_of_call(Adapter(), (torch.ones(2),), {})
    assert trace_frame(frame, lambda traced: reads_in_traced_code(traced.context)) == ()


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


def test_guards_name_what_was_read_from_outside() -> None:
    class Holder:
        def __init__(self) -> None:
            self.rank = 3
            self.stored = dist.get_rank

    holder, found = Holder(), list[str]()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * holder.rank * (1 + holder.stored())

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(guarded_sources(TracingContext.get()))
        return graph.forward

    with fake_world(2):
        torch.compile(program, backend=keep)(torch.ones(2))
    assert any(name.endswith(".rank") for name in found)
    assert any(name.endswith(".stored") for name in found)
    assert is_rank_reader(dist.get_rank)
    assert not is_rank_reader(dist.get_world_size)
    assert not is_rank_reader(3)


def test_the_environment_is_read_by_the_names_that_launchers_use() -> None:
    def reads() -> tuple[str | None, ...]:
        return os.environ.get("LOCAL_RANK"), os.getenv("SLURM_PROCID"), os.getenv("HOME")

    names = [read.name for read in reads_in_code([reads.__code__])]
    assert names == ["os.environ['LOCAL_RANK']", "os.environ['SLURM_PROCID']"]
