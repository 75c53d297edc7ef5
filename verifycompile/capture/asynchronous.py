"""Collectives that run while the program goes on: what they compute, provided that the program waits before it reads.

The marks of ``torch_interface.in_flight`` are resolved here. A buffer that is read before ``wait()`` keeps its mark,
an operator without declaration; a tensor that is changed while a collective uses it is a blocker. So is what a
functional collective returns where anything but a view reads it before ``wait_tensor`` (``unwaited``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.fx

from verifycompile.program import Blocker
from verifycompile.torch_interface.in_flight import in_flight, is_mark, landed, read_too_early, taken

_COPY = torch.ops.aten.copy.default


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
    marked = any(is_mark(node, in_flight) for node in graph.graph.nodes)
    for node in graph.graph.nodes if marked else ():
        if node.target is _COPY and _alike(*node.args[:2]):
            # Of what it writes over, a copy reads the shape alone.
            node.args = (node.args[1], *node.args[1:])
    for node in reversed(list(graph.graph.nodes)):
        is_left_over = is_mark(node, taken) or is_mark(node, in_flight) or (marked and node.target is _COPY)
        if is_left_over and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return tuple(blockers)


def unwaited(graph: torch.fx.GraphModule) -> tuple[Blocker, ...]:
    """One blocker for each collective whose result is read before the program waits for it."""
    until = "is read before the program waits for it with `wait_tensor`."
    return tuple(
        Blocker(node, "VC206", f"the result of `{call}` {until}") for node, call in read_too_early(graph).items()
    )


def _alike(target: object, source: object) -> bool:
    held = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in (target, source)]
    if not all(isinstance(value, torch.Tensor) for value in held):
        return False
    first, second = cast("tuple[torch.Tensor, torch.Tensor]", tuple(held))
    return first.shape == second.shape and first.dtype == second.dtype
