"""Collectives that run while the program goes on: what they compute, provided that the program waits before it reads.

The marks of ``torch_interface.in_flight`` are resolved here. A buffer that is read before ``wait()`` keeps its mark,
an operator without declaration; a tensor that is changed while a collective uses it is a blocker. So is what a
functional collective returns where anything but a view reads it before ``wait_tensor`` (``unwaited``). Coalesced
collectives, which take a list of tensors, become one collective a tensor (``split_coalesced``).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import torch
import torch.fx

from verifycompile.program import Blocker
from verifycompile.torch_interface.communication.in_flight import (
    in_flight,
    is_mark,
    landed,
    read_behind_waits,
    read_too_early,
    taken,
)
from verifycompile.torch_interface.ranks.rank_values import functional_collectives, namespace

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


def wait_before_each_read(graph: torch.fx.GraphModule) -> None:
    """What reads the result of a functional collective behind the wait for it waits again, which changes nothing.

    So each call says what it needs, and the order of calls nothing.
    """
    if unwaited(graph):
        return
    for node, operand in read_behind_waits(graph):
        with graph.graph.inserting_before(node):
            wait = graph.graph.call_function(_functional.wait_tensor.default, (operand,))
        wait.meta.update(operand.meta)
        node.replace_input_with(operand, wait)


def _alike(target: object, source: object) -> bool:
    held = [node.meta.get("val") if isinstance(node, torch.fx.Node) else None for node in (target, source)]
    if not all(isinstance(value, torch.Tensor) for value in held):
        return False
    first, second = cast("tuple[torch.Tensor, torch.Tensor]", tuple(held))
    return first.shape == second.shape and first.dtype == second.dtype


# ------------------------------------------------------------------------------------------------ coalesced

_functional = functional_collectives()
_SINGLE = {
    _functional.all_reduce_coalesced.default: _functional.all_reduce.default,
    _functional.all_gather_into_tensor_coalesced.default: _functional.all_gather_into_tensor.default,
    _functional.reduce_scatter_tensor_coalesced.default: _functional.reduce_scatter_tensor.default,
}
"""Coalesced collective -> the one that has the same arguments but for the first, which is a tensor."""


def split_coalesced(graph: torch.fx.GraphModule) -> None:
    """Rewrite every coalesced collective of ``graph`` in place, in the order of its tensors."""
    for node in list(graph.graph.nodes):
        if namespace(node) != "_c10d_functional" or node.target not in _SINGLE:
            continue
        if node.kwargs or any(user.target is not operator.getitem for user in node.users):
            continue
        tensors = cast("Sequence[torch.fx.Node]", node.args[0])
        singles: list[torch.fx.Node] = []
        with graph.graph.inserting_before(node):
            for tensor, value in zip(tensors, node.meta["val"], strict=True):
                single = graph.graph.call_function(_SINGLE[node.target], (tensor, *node.args[1:]))
                single.meta.update({**node.meta, "val": value})
                singles.append(single)
        for user in list(node.users):
            position = user.args[1]
            assert isinstance(position, int)
            user.replace_all_uses_with(singles[position])
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)
    graph.recompile()
