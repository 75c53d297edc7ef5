"""Dynamo traces our functions in the place of torch's collectives, only where it is asked to."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.fx

from tests.support import fake_world
from verifycompile.torch_interface.communication.in_flight import in_flight, is_mark, landed, taken, without_marks
from verifycompile.torch_interface.dynamo.collective_tracing import trace_collectives


def summed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    assert work is not None
    work.wait()
    return y


def graphs_of(function: Any) -> list[torch.fx.GraphModule]:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(function, backend=keep)(torch.ones(4))
    return graphs


def collectives(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if "c10d" in str(node.target)]


def test_asynchronous_collectives_are_traced_while_entered() -> None:
    with fake_world(2):
        with trace_collectives():
            (graph,) = graphs_of(summed)
        assert collectives(graph) == ["_c10d_functional.all_reduce", "_c10d_functional.wait_tensor"]
        torch._dynamo.reset()
        assert [collectives(graph) for graph in graphs_of(summed)] == [[]]


def test_marks_say_what_is_in_flight_and_can_be_taken_out() -> None:
    with fake_world(2), trace_collectives():
        (graph,) = graphs_of(summed)
    marks = [
        next((mark for mark in (in_flight, taken, landed) if is_mark(node, mark)), None) for node in graph.graph.nodes
    ]
    assert [mark for mark in marks if mark is not None] == [in_flight, taken, landed]
    names = [str(node.target) for node in without_marks(graph).graph.nodes if "_verifycompile" in str(node.target)]
    assert names == []
    graph.graph.lint()


def test_a_reduction_without_functional_form_breaks_the_graph() -> None:
    operation: Any = dist._make_nccl_premul_sum(0.5)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, op=operation)
        return y

    with fake_world(2), trace_collectives():
        found = torch._dynamo.explain(scaled)(torch.ones(4))
    assert [collectives(graph) for graph in found.graphs] == [[]]
    assert "has no functional form" in str(found.break_reasons[0].reason)
