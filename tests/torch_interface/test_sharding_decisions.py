"""Sharding decisions at capture: made once for what is alike, and anew for what is not."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._guards import TracingContext, tracing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg

from tests.support import fake_mesh_world
from verifycompile.torch_interface.dtensor.sharding_decisions import sharding_decided_once
from verifycompile.torch_interface.dynamo import aot
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame

_NAME = "propagate_op_sharding_non_cached"


def test_the_graph_is_the_same_and_fewer_decisions_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[OpSchema] = []
    original = getattr(ShardingPropagator, _NAME)

    def counted(self: ShardingPropagator, op_schema: OpSchema) -> OutputSharding:
        asked.append(op_schema)
        return original(self, op_schema)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = (x @ weight).relu() @ weight.T
        return x.redistribute(placements=[Replicate()]).to_local()  # type: ignore[attr-defined]

    def traced() -> list[Any]:
        with fake_mesh_world((2,), ("tp",)) as mesh:
            x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
            weight = distribute_tensor(torch.randn(8, 16), mesh, [Shard(1)]).requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            joint = trace_frame(
                frame_of_call(function, (x, weight), {}),
                lambda frame: aot.export_joint(frame.graph, frame.example_inputs),
            )
        # Names count the sizes that were computed on the way to a decision.
        numbers = {node: number for number, node in enumerate(joint.graph.graph.nodes)}
        return [
            (node.op, node.op == "call_function" and node.target, map_arg(node.args, numbers.get)) for node in numbers
        ]

    monkeypatch.setattr(ShardingPropagator, _NAME, counted)
    remembered, decisions = traced(), len(asked)
    monkeypatch.setattr(aot, "sharding_decided_once", contextlib.nullcontext)
    asked.clear()
    assert [str(node) for node in traced()] == [str(node) for node in remembered]
    assert len(asked) > decisions
    assert getattr(ShardingPropagator, _NAME) is counted


def test_what_a_decision_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ShapeEnv()
    with fake_mesh_world((2,), ("tp",)) as mesh:

        def spec(dim: int, size: Any, dtype: torch.dtype = torch.float32) -> DTensorSpec:
            return DTensorSpec(mesh, (Shard(dim),), TensorMeta(torch.Size((size, 4)), (4, 1), dtype))

        size = shapes.create_unbacked_symint()
        arguments: list[tuple[object, ...]] = [
            (spec(0, 4), 1),
            (spec(1, 4), 1),
            (spec(0, 8), 1),
            (spec(0, 4, torch.float64), 1),
            (spec(0, 4), True),
            (spec(0, 4), 1.0),
            (spec(0, 4), [1]),
            (spec(0, 4), (1,)),
            (spec(0, size), 1),
            (spec(0, shapes.create_unbacked_symint()), 1),
        ]
        made = {number: OutputSharding(spec(0, size)) for number in range(100)}
        asked = iter(made)
        monkeypatch.setattr(ShardingPropagator, _NAME, lambda *_: made[next(asked)])

        def decided(*args: object) -> OutputSharding:
            schema = OpSchema(torch.ops.aten.add.Tensor, args, {})  # type: ignore[arg-type]
            return getattr(ShardingPropagator, _NAME)(None, schema)

        with sharding_decided_once():
            first = [decided(*args) for args in arguments]
            assert len({id(item) for item in first}) == len(arguments)
            # The size of the result is that of an argument here, and data's anywhere else.
            again = [decided(*args) is found for args, found in zip(arguments, first, strict=True)]
            assert again == [False] * 8 + [True, False]
            assert decided(spec(0, size), object()) is not decided(spec(0, size), object())
        with tracing(TracingContext(None)):
            with sharding_decided_once():
                of_frame = decided(spec(0, size), 1)
            same: Any = shapes.create_symintnode(size.node.expr, hint=None)
            with sharding_decided_once():  # another trace of the frame, which has an object of its own for the size
                renewed: Any = decided(spec(0, same), 1)
                assert decided(spec(0, same), 1).output_spec == renewed.output_spec == of_frame.output_spec
            assert renewed.output_spec.tensor_meta.shape[0] is same
            assert made[next(asked) - 1] is of_frame, "the last decision that was made"


def test_a_decision_holds_for_other_objects_as_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[OpSchema] = []

    def decide(_: Any, schema: OpSchema) -> OutputSharding:
        asked.append(schema)
        first, second = schema.args_spec
        return OutputSharding((second, None), OpSchema(schema.op, (first, [2]), {}), needs_redistribute=True)

    monkeypatch.setattr(ShardingPropagator, _NAME, decide)
    with fake_mesh_world((2,), ("tp",)) as mesh, sharding_decided_once():
        one, other, third = mesh, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), copy.copy(mesh)
        assert one == other == third
        meta = TensorMeta(torch.Size((4, 4)), (4, 1), torch.float32)
        for first, second in ((one, other), (other, third), (third, one)):
            specs = tuple(DTensorSpec(item, (Shard(0),), meta) for item in (first, second))
            schema = OpSchema(torch.ops.aten.add.Tensor, specs, {})
            found = getattr(ShardingPropagator, _NAME)(None, schema)
            assert isinstance(found.output_spec, tuple)
            assert found.output_spec[0] is not None
            assert found.output_spec[0].mesh is second
            assert found.redistribute_schema.args_schema[0].mesh is first
            assert found.redistribute_schema.args_schema[1] == [2]
            assert found.needs_redistribute
        assert len(asked) == 1
        specs = (DTensorSpec(one, (Shard(0),), meta),) * 2
        getattr(ShardingPropagator, _NAME)(None, OpSchema(torch.ops.aten.add.Tensor, specs, {}))
        assert len(asked) == 2, "one mesh twice is another question than two"


def test_what_is_compiled_has_the_sizes_of_its_own_trace() -> None:
    """The inner compiler takes decisions made for the proof: of their sizes its trace knows nothing."""
    with fake_mesh_world((2,), ("tp",)) as mesh:
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
        plan = {
            "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "1": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, plan)
        compiled = torch.compile(model, backend="verify", options={"inner": "aot_eager"}, dynamic=True)
        compiled(torch.zeros(4, 6, dtype=torch.int64)).sum().backward()
    assert model[0].weight.grad is not None
