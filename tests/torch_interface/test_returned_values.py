"""Where a frame leaves its values: places in what it returns and in the objects that it changes."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.training_step.returned_values import Constant, LeftBehind, Symbol


def traced(function: Callable[..., Any], x: torch.Tensor) -> LeftBehind:
    return trace_frame(frame_of_call(function, (x,), {}), lambda traced: traced.left_behind)


def described(left: LeftBehind) -> dict[Any, Any]:
    return {
        place: leaf.name if isinstance(leaf, torch.fx.Node) else leaf
        for place, leaf in (*left.returned.items(), *left.changed.items())
    }


@dataclasses.dataclass
class Pair:
    first: Any = None
    second: Any = None


def test_places_in_what_is_returned() -> None:
    x = torch.ones(3)
    assert described(traced(torch.nn.Tanh(), x)) == {(): "tanh"}
    assert described(traced(lambda x: [x.sin(), (x.cos(), 2, None, "a")], x)) == {
        (0,): "sin", (1, 0): "cos", (1, 1): Constant(2), (1, 2): Constant(None), (1, 3): Constant("a"),
    }  # fmt: skip
    assert described(traced(lambda x: {"b": x.sin(), 1: x.cos()}, x)) == {("'b'",): "sin", ("1",): "cos"}
    ordered = described(traced(lambda x: collections.OrderedDict(b=x.sin()), x))
    assert list(ordered) == [("'b'",)]
    assert described(traced(lambda x: Pair(second=x.sin()), x)) == {(".first",): Constant(None), (".second",): "sin"}


def test_numbers_that_are_not_fixed() -> None:
    x = torch.ones(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    assert described(traced(lambda x: (x.sin(), x.shape[0]), x))[1,] == Symbol()


class Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, torch.Tensor] = {}
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.sin()
        self.kept["a"] = x.cos()
        return x.tanh()


def test_places_in_objects_that_are_changed() -> None:
    places = described(traced(Keeps(), torch.ones(3)))
    assert places[()] == "tanh"
    assert {place[1:]: node for place, node in places.items() if place} == {(".last",): "sin", ("'a'",): "cos"}
    assert all("self" in place[0] for place in places if place)


def test_attributes_of_inputs_are_results_of_the_graph() -> None:
    def results(traced: TracedFrame) -> list[str]:
        (output,) = traced.graph.graph.find_nodes(op="output")
        assert traced.returned == tuple(output.args[0])
        return [str(node.target) for node in traced.returned]

    found = trace_frame(frame_of_call(lambda x: (x.sin(), x.T), (torch.ones(2, 3),), {}), results)
    assert len(found) == 2
    assert "getattr" in found[1]
