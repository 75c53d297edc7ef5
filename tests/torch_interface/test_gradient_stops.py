"""What stops gradients is found in Dynamo's graphs, and is nothing in a trace that lets gradients pass there."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.dynamo.gradient_stops import gradients_pass, stops_of, without_regions


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x * self.weight.detach()
        second = (x * self.weight).data
        with torch.no_grad():
            third = x * self.weight
        return first + second + third


_FIRST = inspect.getsourcelines(Stopping.forward)[1]


def traced() -> TracedFrame:
    return trace_frame(frame_of_call(Stopping(), (torch.randn(2, 3),), {}), lambda frame: frame)


def test_each_line_that_stops_gradients_is_found() -> None:
    stops = stops_of(traced().graph.graph)
    assert [(stop.place.line - _FIRST, stop.is_region) for stop in stops] == [(1, False), (2, False), (4, True)]


@pytest.mark.parametrize("position", range(3))
def test_a_graph_without_a_stop_has_the_others(position: int) -> None:
    stops = stops_of(traced().graph.graph)
    with gradients_pass(stops[position]):
        graph = without_regions(traced().graph).graph
    assert stops_of(graph) == (*stops[:position], *stops[position + 1 :])
    products = [node for node in graph.nodes if node.op == "call_function" and "mul" in str(node.target)]
    assert len(products) == 3
    assert stops_of(traced().graph.graph) == stops
