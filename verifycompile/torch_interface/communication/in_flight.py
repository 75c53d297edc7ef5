"""Marks in a graph for collectives that run while the program goes on: what they write is unknown until the wait.

``buffer.copy_(in_flight(buffer))`` stands where a collective is launched that writes ``buffer``, ``taken(tensor)``
where it reads ``tensor``. ``landed(value, before, after)`` is ``value``, provided that the tensors ``after``, as they
are where the program waits, are still ``before``, as they were at the launch. The marks are for the proof:
``without_marks`` takes them out again of what is compiled. Functional collectives need no mark: their results are
under way until ``wait_tensor`` (``read_too_early``).
"""

from __future__ import annotations

import operator

import torch
import torch.fx

_LIBRARY = torch.library.Library("_verifycompile", "DEF")
_LIBRARY.define("in_flight(Tensor buffer) -> Tensor")
_LIBRARY.define("taken(Tensor tensor) -> Tensor")
_LIBRARY.define("landed(Tensor value, Tensor[] before, Tensor[] after) -> Tensor")


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def _landed(value: torch.Tensor, _before: list[torch.Tensor], _after: list[torch.Tensor]) -> torch.Tensor:
    return value.clone()


for _name, _body in (("in_flight", _copy), ("taken", _copy), ("landed", _landed)):
    _LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")

in_flight = torch.ops._verifycompile.in_flight.default
taken = torch.ops._verifycompile.taken.default
landed = torch.ops._verifycompile.landed.default


def without_marks(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The Dynamo graph without marks, changed in place."""
    marks = [node for node in graph.graph.nodes if node.op == "call_function" and _is_mark(node.target)]
    if not marks:
        return graph
    for mark in reversed(marks):
        source = mark.args[0]
        for user in list(mark.users):
            if is_mark(mark, in_flight) and user.target == "copy_" and user.args[1] is mark:
                user.replace_all_uses_with(user.args[0])
                graph.graph.erase_node(user)
        mark.replace_all_uses_with(source)
        graph.graph.erase_node(mark)
    graph.recompile()
    return graph


def is_mark(node: torch.fx.Node, mark: torch._ops.OpOverload) -> bool:
    """Whether a node of a Dynamo or ATen graph is a call of ``mark``."""
    return node.op == "call_function" and node.target in (mark, mark.overloadpacket)


def _is_mark(target: object) -> bool:
    return any(target in (mark, mark.overloadpacket) for mark in (in_flight, taken, landed))


_WAIT = torch.ops._c10d_functional.wait_tensor.default
_KNOWN_AT_LAUNCH = (
    torch.ops.aten.sym_size,
    torch.ops.aten.sym_stride,
    torch.ops.aten.sym_numel,
    torch.ops.aten.sym_storage_offset,
)


def read_too_early(graph: torch.fx.GraphModule) -> dict[torch.fx.Node, str]:
    """Results of functional collectives that an ATen graph reads before it waits for them, with what computes them.

    torch keeps what is under way by its memory: a wait for a view of a result is a wait for the result, and one for
    a tensor that was computed from it is none. Sizes and strides are known from the launch on.
    """
    launches: dict[torch.fx.Node, torch.fx.Node] = {}
    found: dict[torch.fx.Node, str] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _KNOWN_AT_LAUNCH:
            continue
        for launch in dict.fromkeys(launches[value] for value in node.all_input_nodes if value in launches):
            if node.target is _WAIT:
                launches = {value: own for value, own in launches.items() if own is not launch}
            elif node.target is operator.getitem:
                launches[node] = node  # each of several results is waited for
            elif isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
                launches[node] = launch
            else:
                call = launch.all_input_nodes[0] if launch.target is operator.getitem else launch
                found.setdefault(launch, str(call.target))
        if _is_launch(node.target):
            launches[node] = node
    return found


def read_behind_waits(graph: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Calls that read a functional collective's result, or a view of it, and no wait's result: ``(node, operand)``."""
    raw: set[torch.fx.Node] = set()
    found: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    for node in graph.graph.nodes:
        known = getattr(node.target, "overloadpacket", None) in _KNOWN_AT_LAUNCH
        if node.op != "call_function" or known or node.target is _WAIT:
            continue
        read = [operand for operand in node.all_input_nodes if operand in raw]
        passes_on = node.target is operator.getitem or getattr(node.target, "is_view", False)
        if _is_launch(node.target) or (read and passes_on):
            raw.add(node)
        if not passes_on:
            found += [(node, operand) for operand in read]
    return found


def _is_launch(target: object) -> bool:
    is_collective = isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional"
    return is_collective and target is not _WAIT
