"""Strided shards: their placements, and their view form, which is torch's own, value by value."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor.placement_types import _StridedShard

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dtensor.changed_placements import in_digit_order, of_booleans, with_dimension
from verifycompile.torch_interface.dtensor.placements import (
    block_shard,
    is_known,
    norm_order,
    order_of,
    outer_blocks,
    partial_of,
    reduction_name,
    sharded_dimension,
)
from verifycompile.torch_interface.dtensor.strided import joined, selected, strided_shards_by_views
from verifycompile.torch_interface.dynamo.aot import export_joint
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame


class OtherShard(Shard):
    """A user's own placement."""


def test_placements() -> None:
    strided = _StridedShard(1, split_factor=4)
    assert [sharded_dimension(item) for item in (Shard(2), strided, Replicate(), Partial())] == [2, 1, None, None]
    assert [outer_blocks(item) for item in (Shard(2), strided)] == [1, 4]
    assert (block_shard(1, 4), block_shard(1, 1)) == (strided, Shard(1))
    assert (with_dimension(strided, 0), with_dimension(Shard(1), 0)) == (_StridedShard(0, split_factor=4), Shard(0))
    assert [is_known(item) for item in (Shard(0), strided, Replicate(), Partial(), OtherShard(0))] == [True] * 4 + [
        False
    ]


def test_partial_placements() -> None:
    norm, other = _NormPartial(3), _NormPartial(2.5)
    assert [norm_order(item) for item in (norm, other, Partial(), Shard(0), _NormPartial(0))] == [3, 2.5] + [None] * 3
    assert [is_known(item) for item in (norm, _NormPartial(0))] == [True, False]
    for item in (norm, other, Partial("sum"), Partial("avg"), Partial("product")):
        assert partial_of(reduction_name(item)) == item
    assert order_of(reduction_name(norm)) == 3
    assert of_booleans((Partial("sum"), Partial("product"), Partial("max"), Shard(0), norm)) == (
        Partial("max"),
        Partial("min"),
        Partial("max"),
        Shard(0),
        norm,
    )
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(norm._pre_reduce_transform(values), values**3)
    torch.testing.assert_close(norm._post_reduce_transform(values**3), values)


def test_order_of_digits() -> None:
    shards = (Shard(0), Shard(0), Shard(0))
    assert in_digit_order(shards, [(0, (0, 1, 2))], (2, 3, 4)) == shards
    assert in_digit_order(shards, [(0, (2, 0, 1))], (2, 3, 4)) == (block_shard(0, 4), block_shard(0, 4), Shard(0))
    assert in_digit_order(shards, [(0, (1, 0, 2))], (2, 3, 4)) == (block_shard(0, 3), Shard(0), Shard(0))


@pytest.mark.parametrize(("ranks", "blocks", "dim"), list(itertools.product((1, 2, 3), (1, 2, 4), (0, 1))))
def test_same_values_as_torch(ranks: int, blocks: int, dim: int) -> None:
    tensor = torch.randn(24, 24)
    strided = _StridedShard(dim, split_factor=blocks)
    shards, _ = strided._split_tensor(tensor, ranks, with_padding=False)
    for rank, shard in enumerate(shards):
        assert torch.equal(selected(tensor, dim, ranks, blocks, rank), shard)
        size, offset = strided.local_shard_size_and_offset(24, ranks, rank)
        with strided_shards_by_views() as made:
            assert strided.local_shard_size_and_offset(24, ranks, rank) == (size, offset)
            assert torch.equal(strided._select_split_tensor(tensor, ranks, rank), shard)
        assert made == ["size", "shard"]
    assert torch.equal(joined(torch.cat(shards, dim), dim, ranks, blocks), tensor)


def test_torch_is_left_as_it_was() -> None:
    before = dict(vars(_StridedShard))
    with strided_shards_by_views() as made:
        assert _StridedShard(0, split_factor=2).local_shard_size_and_offset(7, 2, 0) == (4, 0)
    assert made == []
    assert dict(vars(_StridedShard)) == before


def test_graphs_have_no_index_tensors() -> None:
    def function(weight: DTensor) -> torch.Tensor:
        return weight.redistribute(placements=[Replicate()]).to_local()

    sizes: set[int] = set()
    for rows in (16, 512):
        with fake_mesh_world((2,), ("dp",)) as mesh:
            weight = distribute_tensor(torch.randn(rows, 8), mesh, [_StridedShard(0, split_factor=4)])
            joint = trace_frame(
                frame_of_call(function, (weight,), {}), lambda traced: export_joint(traced.graph, traced.example_inputs)
            )
            assert joint.rearranged
            assert not joint.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.argsort.default)
            sizes.add(len(joint.graph.graph.nodes))
    assert len(sizes) == 1
