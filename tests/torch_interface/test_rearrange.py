"""The view form of the rearrangements around collectives is torch's own, value by value."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed._functional_collectives as functional_collectives
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from tests.support import fake_mesh_world
from verifycompile.torch_interface.communication.rearrange import collectives_rearrange_by_views, gathered, to_scatter
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame


@pytest.mark.parametrize(("group_size", "dimension"), list(itertools.product((1, 2, 4), (1, 2))))
def test_same_values_as_torch(group_size: int, dimension: int) -> None:
    gather = functional_collectives._maybe_view_chunk_cat
    scatter = functional_collectives._chunk_or_narrow_cat
    for shape in ((4, 4, 8), (8, 12, 4), (4, 4, 4, 3)):
        tensor = torch.randn(shape)
        assert torch.equal(gathered(tensor, group_size, dimension), gather(tensor, group_size, dimension))
        assert torch.equal(to_scatter(tensor, group_size, dimension), scatter(tensor, group_size, dimension, 0))


def test_torch_is_left_as_it_was() -> None:
    before = functional_collectives._maybe_view_chunk_cat, functional_collectives._chunk_or_narrow_cat
    with collectives_rearrange_by_views() as made:
        assert functional_collectives._maybe_view_chunk_cat is not before[0]
        tensor = torch.randn(8, 8)
        assert torch.equal(functional_collectives._maybe_view_chunk_cat(tensor, 4, 1), gathered(tensor, 4, 1))
        assert torch.equal(functional_collectives._chunk_or_narrow_cat(tensor, 4, 1), to_scatter(tensor, 4, 1))
        uneven = torch.randn(8, 6)
        assert (
            functional_collectives._chunk_or_narrow_cat(uneven, 4, 1).shape == torch.cat(uneven.chunk(4, 1)[:3]).shape
        )
    assert made == ["all_gather", "reduce_scatter"]
    assert (functional_collectives._maybe_view_chunk_cat, functional_collectives._chunk_or_narrow_cat) == before


def test_graphs_do_not_grow_with_the_degree() -> None:
    def function(x: DTensor) -> DTensor:
        whole = x.redistribute(placements=[Replicate()]).to_local()
        mesh = x.device_mesh
        return DTensor.from_local(whole, mesh, [Partial()]).redistribute(placements=[Shard(1)])

    sizes: set[int] = set()
    for degree in (2, 64):
        with fake_mesh_world((degree,), ("tp",)) as mesh:
            x = DTensor.from_local(torch.randn(4, 2), mesh, [Shard(1)])
            joint = trace_frame(
                frame_of_call(function, (x,), {}), lambda traced: export_joint(traced.graph, traced.example_inputs)
            )
            assert joint.rearranged
            sizes.add(len(joint.graph.graph.nodes))
    assert len(sizes) == 1


def test_a_new_shard_dimension_is_one_operator_without_a_rank() -> None:
    def function(x: DTensor) -> DTensor:
        return x.redistribute(placements=[Shard(1)])

    before = Shard._to_new_shard_dim
    with fake_mesh_world((2,), ("tp",), rank=1) as mesh:
        x = DTensor.from_local(torch.randn(4, 6), mesh, [Shard(0)])
        frame = frame_of_call(function, (x,), {})
        joint = trace_frame(frame, lambda traced: export_joint(traced.graph, traced.example_inputs))
    assert Shard._to_new_shard_dim is before
    assert joint.rearranged
    assert [str(node.target) for node in joint.graph.graph.nodes].count("_dtensor.shard_dim_alltoall.default") == 1
    assert not joint.rank_reads


def test_a_new_shard_dimension_with_padding_is_left_to_torch() -> None:
    def function(x: DTensor) -> DTensor:
        return x.redistribute(placements=[Shard(1)])

    with fake_mesh_world((2,), ("tp",)) as mesh:
        x = DTensor.from_local(torch.randn(4, 5), mesh, [Shard(0)])
        frame = frame_of_call(function, (x,), {})
        joint = trace_frame(frame, lambda traced: export_joint(traced.graph, traced.example_inputs))
    assert "_dtensor.shard_dim_alltoall.default" not in [str(node.target) for node in joint.graph.graph.nodes]
