"""Sends as they can be waited for: torch registers each under the tensor that is sent and under what the call returns.

A program waits for one of the two. gloo forgets a send once it was waited for, so that the next wait for a collective
on the memory that was sent, which torch waits for together with the send, would never end; and inductor reuses that
memory as soon as it was handed over. A copy that lives until the wait, and is what is waited for, has neither problem.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

_OPERATORS = torch.ops._c10d_functional


def send_copies(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The Dynamo graph whose messages are copies of what it sends, changed in place."""
    sends = [node for node in graph.graph.nodes if _is(node, "isend")]
    batches = [node for node in graph.graph.nodes if _is(node, "batch_p2p_ops")]
    for node in sends:
        _wait_for(node, _copied(graph, node, (0,)))
    for node in batches:
        kinds: Any = node.args[0]
        for place, kind in enumerate(kinds):
            if kind != "isend":
                continue
            copy = _copied(graph, node, (3, place))
            for handle in list(node.users):
                if handle.target is operator.getitem and handle.args[1] == place:
                    _wait_for(handle, copy)
    if sends or batches:
        graph.recompile()
    return graph


def _copied(graph: torch.fx.GraphModule, node: torch.fx.Node, place: tuple[int, ...]) -> torch.fx.Node:
    """A copy of the argument of ``node`` at ``place``, which takes its place."""
    arguments: list[Any] = list(node.args)
    holder = arguments
    for position in place[:-1]:
        holder[position] = list(holder[position])
        holder = holder[position]
    sent: torch.fx.Node = holder[place[-1]]
    with graph.graph.inserting_before(node):
        copy = graph.graph.call_function(torch.clone, (sent,), {"memory_format": torch.contiguous_format})
    copy.meta.update(sent.meta)
    holder[place[-1]] = copy
    node.args = tuple(arguments)
    return copy


def _wait_for(handle: torch.fx.Node, copy: torch.fx.Node) -> None:
    for user in list(handle.users):
        if _is(user, "wait_tensor"):
            user.replace_input_with(handle, copy)


def _is(node: torch.fx.Node, name: str) -> bool:
    packet = getattr(_OPERATORS, name)
    return node.op == "call_function" and node.target in (packet, packet.default)
