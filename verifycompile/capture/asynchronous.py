"""Collectives that run while the program goes on: what they compute, provided that the program waits before it reads.

The marks of ``torch_interface.in_flight`` are resolved here. A buffer that is read before ``wait()`` keeps its mark,
an operator without declaration; a tensor that is changed while a collective uses it is a blocker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch.fx

from verifycompile.program import Blocker
from verifycompile.torch_interface.in_flight import is_mark, landed, taken


def resolve_marks(graph: torch.fx.GraphModule) -> tuple[Blocker, ...]:
    """Replace what has landed by its value, in place; one blocker for each tensor that changed meanwhile."""
    blockers: list[Blocker] = []
    for node in list(graph.graph.nodes):
        if not is_mark(node, landed):
            continue
        value = node.args[0]
        assert isinstance(value, torch.fx.Node)
        before, after = (cast("Sequence[torch.fx.Node]", argument) for argument in node.args[1:])
        if any(mark.args[0] is not tensor for mark, tensor in zip(before, after, strict=True)):
            message = "a tensor changes between an asynchronous collective that uses it and the wait for it."
            blockers.append(Blocker(node, "VC206", message))
            continue
        node.replace_all_uses_with(value)
        graph.graph.erase_node(node)
    for node in reversed(list(graph.graph.nodes)):
        if is_mark(node, taken) and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return tuple(blockers)
