"""Coordinate reads, process groups and collectives in captured graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.fx
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.support import fake_mesh_world
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.ranks.mesh import group_ranks
from verifycompile.torch_interface.ranks.rank_values import (
    coordinate_reads,
    group_uses,
    has_rank_operators,
    new_coordinate,
)


def both_graphs(function: Callable[..., Any], *args: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    return trace_frame(
        frame_of_call(function, args, {}),
        lambda traced: (traced.graph, export_joint(traced.graph, traced.example_inputs).graph),
    )


def test_coordinate_reads() -> None:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=6) as mesh:
        whole = distribute_tensor(torch.ones(8, 4), mesh["tp"], [Replicate()])
        _, graph = both_graphs(lambda x: x.redistribute(placements=[Shard(0)]) * 2, whole)
        (read,) = coordinate_reads(graph)
        assert read.symbol is not None
        assert read.rank_map is not None
        assert read.rank_map.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert read.dimension == 0


def test_groups_taken_from_meshes() -> None:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=6) as mesh:
        shard = distribute_tensor(torch.ones(8, 4), mesh, [Replicate(), Shard(0)])
        dynamo, graph = both_graphs(lambda x: x.redistribute(placements=[Replicate(), Replicate()]) * 2, shard)
        (use,) = group_uses(graph)
        assert use.mesh == mesh
        assert use.dimension == 1
        assert group_ranks(use.group) == (4, 5, 6, 7)
        assert has_rank_operators(graph)
        assert not has_rank_operators(dynamo)  # there, `redistribute` is a method of a DTensor


def test_groups_given_by_the_user() -> None:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=6) as mesh:
        group = mesh["dp"].get_group()

        def function(x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return collectives.all_reduce(x, "sum", group)

        dynamo, graph = both_graphs(function, torch.ones(4))
        assert [group_ranks(use.group) for use in group_uses(graph)] == [tuple(range(8)), (2, 6)]
        assert has_rank_operators(graph)
        assert has_rank_operators(dynamo)


def test_a_graph_without_parallelism() -> None:
    dynamo, graph = both_graphs(lambda x: x.sin(), torch.ones(4))
    assert not has_rank_operators(dynamo)
    assert not has_rank_operators(graph)


def test_a_new_coordinate_is_not_left_pending_in_the_compilation_that_it_is_made_for() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    mesh = Mesh((MeshAxis("tp", 2),), (0, 1))

    def use(traced: TracedFrame) -> tuple[str, list[Any]]:
        exported = export_joint(traced.graph, traced.example_inputs).graph
        node = new_coordinate(exported, mesh, 0)
        environment = traced.context.fake_mode.shape_env  # type: ignore[union-attr]
        return str(node.target), environment.pending_fresh_unbacked_symbols  # type: ignore[union-attr]

    name, pending = trace_frame(frame_of_call(function, (torch.ones(3),), {}), use)
    assert name == "device_mesh._runtime_compute_coordinate_on_dim.default"
    assert pending == []
