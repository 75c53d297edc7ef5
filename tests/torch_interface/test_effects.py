"""What a Dynamo graph writes to is found through views, ``data``, lists of tensors and ``out``, and that it draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from verifycompile.torch_interface.dynamo.attributes import lift_attributes
from verifycompile.torch_interface.dynamo.effects import Effects, effects_of


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


def _drawn(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(p, 0.5) + q


def _not_drawn(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(p, 0.5, training=False) + q


def _effects(function: Callable[..., Any]) -> tuple[list[torch.Tensor], bool]:
    found: list[torch.Tensor] = []
    draws: list[bool] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        lifted, values = lift_attributes(graph, inputs)
        effects = effects_of(lifted)
        found.extend(values[place] for place in effects.written)
        draws.append(effects.draws)
        return graph

    values = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*values)
    assert all(value is values[0] for value in found)
    return found, draws[0]


@pytest.mark.parametrize("function", [_through_a_view, _through_data, _lists, _out, _item])
def test_writes(function: Callable[..., Any]) -> None:
    written, draws = _effects(function)
    assert len(written) == 1
    assert not draws


@pytest.mark.parametrize("function", [_a_copy, _none, _not_drawn])
def test_nothing(function: Callable[..., Any]) -> None:
    assert _effects(function) == ([], False)


def test_random_numbers_are_drawn() -> None:
    assert _effects(_drawn) == ([], True)


def test_a_graph_that_does_not_run_without_numbers_may_do_anything() -> None:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder("a"), graph.placeholder("b")]
    graph.output((graph.call_function(torch.add, tuple(inputs)),))
    assert effects_of(torch.fx.GraphModule(torch.nn.Module(), graph)) == Effects((0, 1), draws=True)
