"""Functions and expressions of source files, and the names of values that come of them."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.fx

from verifycompile.torch_interface.source_lines.syntax import Syntax, syntax_of
from verifycompile.torch_interface.source_lines.value_names import operator_of, value_name

SOURCE = """\
import torch


class Model:
    def forward(self, x):
        y = self.up(x).relu() + x @ self.w
        größe, z = torch.tanh(y).chunk(2)
        out = torch.cat(
            [größe, z],
            dim=-1,
        )
        hook(lambda g: g * 2)
        return out < 0
"""
LINES: list[str] = [*SOURCE.splitlines(keepends=True)]


@pytest.fixture
def syntax() -> Syntax:
    return Syntax(LINES)


def column(line: int, text: str) -> int:
    return LINES[line - 1].index(text) + 1


@pytest.mark.parametrize(
    ("line", "at", "called", "text"),
    [
        (6, "self.up", "up", "self.up(x)"),
        (6, "self.up", "relu", "self.up(x).relu()"),
        (6, "self.up", "add", "self.up(x).relu() + x @ self.w"),
        (6, "self.up", "", "self.up(x)"),
        (6, "x @", "matmul", "x @ self.w"),
        (7, "torch.tanh", "chunk", "torch.tanh(y).chunk(2)"),
        (7, "größe", "tanh", "torch.tanh(y).chunk(2)"),
        (8, "torch.cat", "cat", "torch.cat([größe, z], dim=-1)"),
        (13, "out <", "lt", "out < 0"),
    ],
)
def test_expression_at_a_place(syntax: Syntax, line: int, at: str, called: str, text: str) -> None:
    found = syntax.expression_at(line, column(line, at), called)
    assert found is not None
    assert syntax.text_of(found) == text


def test_columns_count_characters(syntax: Syntax) -> None:
    found = syntax.expression_at(7, column(7, "torch.tanh"), "tanh")
    assert found is not None
    assert LINES[6][column(7, "torch.tanh") - 1 : syntax.end_column(found) - 1] == "torch.tanh(y)"


def test_nothing_begins_in_the_middle(syntax: Syntax) -> None:
    assert syntax.expression_at(6, 3, "up") is None


def test_definitions(syntax: Syntax) -> None:
    assert [syntax.definition_at(line) for line in (1, 4, 5, 9, 12)] == [None, None, 5, 5, 12]
    assert syntax.methods == {5}


def test_what_is_not_python_has_no_expressions() -> None:
    linecache.cache["<a graph>"] = (10, None, ["%mm : [num_users=1] = call_function\n"], "<a graph>")
    found = syntax_of("<a graph>")
    assert found is not None
    assert (found.expressions, found.definition_at(1)) == ({}, None)
    assert syntax_of("<no such file>") is None


def test_a_file_that_changed_is_read_again() -> None:
    linecache.cache["<changing>"] = (1, None, ["x = f(y)\n"], "<changing>")
    first = syntax_of("<changing>")
    assert syntax_of("<changing>") is first
    linecache.cache["<changing>"] = (1, None, ["x = g(y)\n"], "<changing>")
    second = syntax_of("<changing>")
    assert second is not None
    found = second.expression_at(1, 5, "g")
    assert found is not None
    assert second.text_of(found) == "g(y)"


def traced(function: Callable[..., object]) -> dict[str, torch.fx.Node]:
    return {node.name: node for node in torch.fx.symbolic_trace(function).graph.nodes}


def test_without_a_line_the_operator_is_named() -> None:
    nodes = traced(lambda x: torch.sin(x) + 1)
    assert value_name(nodes["sin"]) == operator_of(nodes["sin"]) == "sin"
    assert value_name(nodes["x"]) == "x"
    assert value_name(nodes["x"], {nodes["x"]: "tokens"}) == "tokens"


def test_a_line_of_a_graph_has_the_name_that_it_shows() -> None:
    linecache.cache["<the graph of rank 0>"] = (1, None, ["%mm : [num_users=1] = call\n"], "<the graph of rank 0>")
    node = traced(lambda x: torch.sin(x))["sin"]
    node.meta["stack_trace"] = '  File "<the graph of rank 0>", line 1, in forward\n    %mm : [num_users=1] = call'
    assert value_name(node) == "mm"
