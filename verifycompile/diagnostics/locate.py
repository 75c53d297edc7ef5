"""Which line of the user's source a graph node stands for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch.fx

from verifycompile.program import SourceLocation

Locator = Callable[[torch.fx.Node], SourceLocation | None]


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
