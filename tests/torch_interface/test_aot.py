"""AOTAutograd's joint graph and its descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dynamo.aot import JointGraph, Origin, Part, export_joint
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame


def export(function: Callable[..., Any], *args: Any) -> JointGraph:
    return trace_frame(
        frame_of_call(function, args, {}), lambda traced: export_joint(traced.graph, traced.example_inputs)
    )


def test_joint_graph_of_plain_tensors() -> None:
    weight = nn.Parameter(torch.ones(3))
    joint = export(lambda x, weight: (x * weight).sum(), torch.ones(3), weight)
    assert [(flat.origin, flat.part, flat.index) for flat in joint.inputs] == [
        (Origin.ARGUMENT, Part.WHOLE, 0),
        (Origin.ARGUMENT, Part.WHOLE, 1),
        (Origin.TANGENT, Part.WHOLE, 0),
    ]
    assert [(flat.origin, flat.index) for flat in joint.outputs if flat.node is not None] == [
        (Origin.RESULT, 0),
        (Origin.GRADIENT, 1),
    ]


def test_forward_only_without_gradients() -> None:
    joint = export(lambda x: x.sin(), torch.ones(3))
    assert [flat.origin for flat in joint.inputs] == [Origin.ARGUMENT]
    assert [flat.origin for flat in joint.outputs] == [Origin.RESULT]


def test_results_that_are_views_have_tangents() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    for function in (lambda x: x.view(6), lambda x: (lambda y: (y, y.view(6)))(x.sin())):
        joint = export(function, x)
        results = [flat for flat in joint.outputs if flat.origin is Origin.RESULT]
        assert all(flat.requires_grad for flat in results)
        tangents = [flat.index for flat in joint.inputs if flat.origin is Origin.TANGENT]
        assert tangents == list(range(len(results)))
        assert [flat.index for flat in joint.outputs if flat.origin is Origin.GRADIENT] == [0]
    cut = export(lambda x: (x.sin(), x.detach()), x)
    assert [flat.requires_grad for flat in cut.outputs if flat.origin is Origin.RESULT] == [True, False]


def test_mutated_inputs_are_outputs() -> None:
    def function(x: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        y = x * 2
        running.add_(y)
        return y

    joint = export(function, torch.ones(3), torch.zeros(3))
    assert [(flat.origin, flat.index) for flat in joint.outputs] == [(Origin.MUTATION, 1), (Origin.RESULT, 0)]


def test_no_decompositions() -> None:
    layer = nn.LayerNorm(4)
    joint = export(layer, torch.ones(2, 4))
    targets = {str(node.target) for node in joint.graph.graph.nodes}
    assert "aten.native_layer_norm.default" in targets
    assert "aten.native_layer_norm_backward.default" in targets


def test_layouts_of_dtensors() -> None:
    with fake_mesh_world((2, 4), ("dp", "tp"), rank=5) as mesh:
        weight = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh["tp"], [Shard(0)]))
        joint = export(lambda weight: weight.redistribute(placements=[Replicate()]) * 2, weight)
        local, held_mesh, tangent, _ = joint.inputs
        assert (local.part, held_mesh.part) == (Part.LOCAL, Part.MESH)
        assert local.layout is not None
        assert local.layout.placements == (Shard(0),)
        assert local.layout.global_shape == (8, 4)
        assert local.layout.mesh == mesh["tp"]
        assert tangent.origin is Origin.TANGENT
        assert tangent.layout is not None
        assert tangent.layout.placements == (Replicate(),)
        layouts = {flat.origin: flat.layout for flat in joint.outputs if flat.layout is not None}
        assert layouts[Origin.RESULT].placements == (Replicate(),)
        assert layouts[Origin.GRADIENT].placements == (Shard(0),)


def test_the_graph_is_the_same_on_every_rank() -> None:
    codes: set[str] = set()
    for rank in (0, 3):
        with fake_mesh_world((4,), ("tp",), rank=rank) as mesh:
            weight = distribute_tensor(torch.ones(8, 4), mesh, [Replicate()])
            joint = export(lambda weight: weight.redistribute(placements=[Shard(0)]) * 2, weight)
            codes.add(joint.graph.code)
            assert joint.rank_reads == ()
    assert len(codes) == 1
    assert "_runtime_compute_coordinate_on_dim" in codes.pop()


def test_the_dynamo_graph_stays_usable() -> None:
    def use(traced: Any) -> list[str]:
        before = traced.graph.code
        export_joint(traced.graph, traced.example_inputs)
        export_joint(traced.graph, traced.example_inputs)
        return [before, traced.graph.code]

    before, after = trace_frame(frame_of_call(lambda x: x.sin() + 1, (torch.ones(3),), {}), use)
    assert before == after


def test_pending_collectives_count_as_plain_tensors() -> None:
    with fake_mesh_world((4,), ("tp",)) as mesh:
        partial = DTensor.from_local(torch.ones(4), mesh, [Shard(0)]).redistribute(
            placements=[Replicate()], async_op=True
        )
        pending = partial.to_local()
        assert type(pending).__name__ == "AsyncCollectiveTensor"
        joint = export(lambda x: x.sin(), pending)
        assert [(flat.origin, flat.part) for flat in joint.inputs] == [(Origin.ARGUMENT, Part.WHOLE)]


def test_effect_tokens_stand_before_the_layouts() -> None:
    with fake_mesh_world((2,), ("x",)) as mesh:
        matrices = distribute_tensor(torch.randn(2, 3, 3), mesh, [Shard(0)]).requires_grad_()
        joint = export(lambda x: torch.linalg.cholesky(x), matrices)  # which checks for errors
    flats = [flat for flat in (*joint.inputs, *joint.outputs) if flat.node is not None]
    assert [flat.part for flat in flats].count(Part.EFFECT) == 2
    assert [flat.layout.placements for flat in flats if flat.layout is not None] == [(Shard(0),)] * 4
    assert all((flat.layout is not None) == (flat.part is Part.LOCAL) for flat in flats)
