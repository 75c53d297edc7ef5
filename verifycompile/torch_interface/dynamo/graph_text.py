"""A Dynamo graph as text that is equal for equal programs: operators, arguments and shapes, without names."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate


def graph_text(graph: torch.fx.GraphModule) -> str:
    """The text of a graph and of the graphs inside it."""
    numbers: dict[torch.fx.Node, str] = {}
    lines: list[str] = []

    def argument(value: Any) -> Any:
        return _Text(numbers[value]) if isinstance(value, torch.fx.Node) else value

    for position, node in enumerate(graph.graph.nodes):
        numbers[node] = f"%{position}"
        args = map_aggregate(node.args, argument)
        kwargs = map_aggregate(node.kwargs, argument)
        lines.append(f"%{position} {node.op} {_target(node)} {args} {kwargs} {_result(node)}")
        inner = _inner(graph, node)
        if inner is not None:
            lines.append(f"{{{graph_text(inner)}}}")
    return "\n".join(lines)


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _target(node: torch.fx.Node) -> str:
    if node.op in ("placeholder", "output"):
        return ""
    target = node.target
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"


def _result(node: torch.fx.Node) -> str:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return str(type(value).__name__)
    return f"{value.dtype} {tuple(value.shape)} {value.stride() if value.layout is torch.strided else ''}"


def _inner(graph: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule | None:
    if node.op not in ("get_attr", "call_module"):
        return None
    found: Any = graph
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.fx.GraphModule) else None
