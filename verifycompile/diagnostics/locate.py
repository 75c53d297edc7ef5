"""Which line of the user's source a graph node stands for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch.fx

from verifycompile.diagnostics.finding import Label
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import helper_location_of, model_location_of
from verifycompile.torch_interface.source_lines.source import module_of
from verifycompile.torch_interface.source_lines.value_names import operator_of

Locator = Callable[[torch.fx.Node], SourceLocation | None]


def place_of(node: torch.fx.Node | None) -> SourceLocation | None:
    """The line of the user's model that a node stands for, or the nearest one to it."""
    return nearest_location(node, model_location_of)


def helper_labels(node: torch.fx.Node | None) -> tuple[Label, ...]:
    """The line inside the helper that the model's line calls; nothing where the model's line is the innermost."""
    location = None if node is None else helper_location_of(node)
    if node is None or location is None:
        return ()
    return (Label(location, f"the helper `{location.function}` calls `{operator_of(node)}` here"),)


def modules_before(node: torch.fx.Node | None) -> tuple[str, ...]:
    """The modules that made the operands of a node, views of them passed over."""
    found: dict[str, None] = {}
    for operand in () if node is None else node.all_input_nodes:
        made = operand
        while is_view(made.target) and made.all_input_nodes:
            made = made.all_input_nodes[0]
        found |= {module_of(made): None}
    return tuple(module for module in found if module)


def nearest_location(node: torch.fx.Node | None, locate: Locator) -> SourceLocation | None:
    """The node's own line, else that of its nearest user, else that of its nearest producer, else None.

    Placeholders, and nodes that a tracer inserts, have no line of their own.
    """
    if node is None:
        return None
    found = _search(node, locate, lambda current: current.users)
    return found if found is not None else _search(node, locate, lambda current: current.all_input_nodes)


def _search(
    node: torch.fx.Node, locate: Locator, neighbours: Callable[[torch.fx.Node], Iterable[torch.fx.Node]]
) -> SourceLocation | None:
    queue, seen = deque([node]), {node}
    while queue:
        current = queue.popleft()
        if (location := locate(current)) is not None:
            return location
        for neighbour in neighbours(current):
            if neighbour not in seen:
                seen.add(neighbour)
                queue.append(neighbour)
    return None
