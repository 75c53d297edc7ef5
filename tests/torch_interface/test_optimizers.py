"""The function behind an optimizer's ``step``, and the static tensors that Dynamo stores in its graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._inductor import inductor_prims

from verifycompile.torch_interface.dynamo.attributes import lift_attributes
from verifycompile.torch_interface.operators.prims import FUSED_MULTIPLY_ADD
from verifycompile.torch_interface.training_step.optimizers import step_of, writes_outside_of_steps


def test_step_of() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    step = step_of(optimizer.step)
    assert step is not None
    assert step.__code__.co_filename.endswith("torch/optim/sgd.py")
    assert step_of(optimizer.zero_grad) is None
    assert step_of(weight.sum) is None
    differentiable = torch.optim.SGD([weight], lr=0.1, differentiable=True)
    assert step_of(differentiable.step) is None


class Outer(torch.optim.SGD):
    """Its step is that of another optimizer, and a write of its own."""

    def step(self, closure: Any = None) -> None:
        torch.optim.SGD(self.param_groups[0]["params"], lr=0.1).step()
        super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, Outer])
def test_writes_of_optimizers_are_told_from_others(kind: type[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = kind([weight], lr=0.1)  # type: ignore[call-arg]  # of the base class alone, which requires defaults
    before = writes_outside_of_steps(weight)
    for _ in range(2):
        weight.square().sum().backward()
        optimizer.step()
    assert writes_outside_of_steps(weight) == before
    with torch.no_grad():
        weight.mul_(2)
    assert writes_outside_of_steps(weight) == before + 1
    optimizer.step()
    assert writes_outside_of_steps(weight) == before + 1


def test_a_compiled_step_is_one_graph_whose_writes_are_no_optimizers() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    before = writes_outside_of_steps(weight)
    optimizer, graphs = torch.optim.SGD([weight], lr=0.1), CompileCounter()
    torch.compile(optimizer.step, backend=graphs)()
    assert graphs.frame_count == 1
    assert writes_outside_of_steps(weight) > before


def test_static_tensors_become_inputs() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        lifted, values = lift_attributes(graph, inputs)
        seen.append((graph, lifted, values))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(optimizer.step, backend=backend)()
    ((graph, lifted, values),) = seen
    assert len(graph.graph.find_nodes(op="get_attr")) == 1
    assert lifted.graph.find_nodes(op="get_attr") == []
    names = [node._dynamo_source.name for node in lifted.graph.find_nodes(op="placeholder")]
    assert names == [
        "L['self'].param_groups[0]['params'][0].grad",
        "L['self'].param_groups[0]['params'][0]",
    ]
    assert values[1] is weight
    assert len(graph.graph.find_nodes(op="placeholder")) == 1


def test_a_graph_without_static_tensors_stays_as_it_is() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert lift_attributes(graph, [torch.ones(1)])[0] is graph


def test_fused_multiply_add() -> None:
    assert FUSED_MULTIPLY_ADD is inductor_prims.fma
    assert [argument.name for argument in FUSED_MULTIPLY_ADD._schema.arguments] == ["a", "b", "c"]
