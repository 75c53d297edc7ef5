"""What a Dynamo graph writes to is found through views, ``data``, lists of tensors and ``out``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from verifycompile.torch_interface.dynamo.attributes import lift_attributes
from verifycompile.torch_interface.dynamo.written_inputs import written_inputs


def _through_a_view(p: torch.Tensor, q: torch.Tensor) -> None:
    p.t()[0].mul_(q.sum())


def _through_data(p: torch.Tensor, q: torch.Tensor) -> None:
    p.data.add_(q)


def _lists(p: torch.Tensor, q: torch.Tensor) -> None:
    torch._foreach_mul_([p], [q])


def _out(p: torch.Tensor, q: torch.Tensor) -> None:
    torch.add(q, q, out=p)


def _item(p: torch.Tensor, q: torch.Tensor) -> None:
    p[0] = q[0]


def _a_copy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return p.clone().add_(q)


def _none(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * q).sum()


def _written(function: Callable[..., Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        lifted, values = lift_attributes(graph, inputs)
        found.extend(values[place] for place in written_inputs(lifted))
        return graph

    values = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*values)
    assert all(value is values[0] for value in found)
    return found


@pytest.mark.parametrize("function", [_through_a_view, _through_data, _lists, _out, _item])
def test_writes(function: Callable[..., Any]) -> None:
    assert len(_written(function)) == 1


@pytest.mark.parametrize("function", [_a_copy, _none])
def test_no_writes(function: Callable[..., Any]) -> None:
    assert _written(function) == []


def test_a_graph_that_does_not_run_without_numbers_may_write_to_all() -> None:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder("a"), graph.placeholder("b")]
    graph.output((graph.call_function(torch.add, tuple(inputs)),))
    assert written_inputs(torch.fx.GraphModule(torch.nn.Module(), graph)) == [0, 1]
