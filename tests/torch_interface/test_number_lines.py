"""What torch records beside a graph: the functions that it traced, and what assigned a module's numbers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch._guards import TracingContext

from verifycompile.captured_notes import RanBeside
from verifycompile.torch_interface.ranks.constructed import record_constructions
from verifycompile.torch_interface.source_lines.number_lines import line_of_number, ran_beside
from verifycompile.torch_interface.source_lines.source import frames_of


class OnOneLine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor: return (lambda y: y * unknown_here[0])(x)  # fmt: skip


unknown_here = [2]


class Scaled(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.factor = size**-0.5

    def first(self) -> int:
        return len("ab") + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.first() :] * self.factor


def traced(model: nn.Module) -> tuple[torch.fx.GraphModule, RanBeside]:
    found: list[tuple[torch.fx.GraphModule, RanBeside]] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.append((graph, ran_beside(model, TracingContext.get())))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(torch.ones(8))
    return found[0]


def line(text: str) -> int:
    lines, first = inspect.getsourcelines(inspect.getmodule(Scaled) or Scaled)
    return next(number for number, own in enumerate(lines, first + 1) if own.strip() == text)


@pytest.mark.parametrize(
    ("called", "text"),
    [("mul", "self.factor = size**-0.5"), ("getitem", 'return len("ab") + 1')],
)
def test_a_number_is_made_where_it_was_assigned_or_returned(called: str, text: str) -> None:
    record_constructions()
    graph, beside = traced(Scaled(4))
    node = next(node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == called)
    assert frames_of(node)
    found = line_of_number(node, beside)
    assert found is not None
    assert found.line == line(text)


def test_functions_within_one_line_end() -> None:
    graph, beside = traced(OnOneLine())
    assert all(line_of_number(node, beside) is None for node in graph.graph.nodes)


def test_a_number_that_is_set_afterwards_is_made_there() -> None:
    record_constructions()
    model = Scaled(4)
    model.factor = model.factor * 2
    graph, beside = traced(model)
    node = next(node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == "mul")
    found = line_of_number(node, beside)
    assert found is not None
    assert found.line == line("model.factor = model.factor * 2")


def test_without_what_ran_a_function_is_the_only_one_of_its_name() -> None:
    graph, _ = traced(Scaled(4))
    node = next(node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == "getitem")
    found = line_of_number(node, None)
    assert found is not None
    assert found.line == line('return len("ab") + 1')
