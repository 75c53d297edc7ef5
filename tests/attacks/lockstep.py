"""Graphs of all ranks, run in one process: every collective waits for its group and is computed by hand."""

from __future__ import annotations

import operator
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

c10d = torch.ops._c10d_functional
Waiting = tuple[Any, tuple[Any, ...]]


class DeadlockError(Exception):
    """Ranks deadlock, or meet in calls that do not belong together."""


def run_ranks(
    graphs: Sequence[torch.fx.GraphModule], inputs: Sequence[Sequence[torch.Tensor]], groups: Mapping[str, Sequence[int]]
) -> list[tuple[torch.Tensor, ...]]:
    """What each rank's graph returns for its ``inputs``. ``groups``: name -> global ranks."""
    runs = [_run(graph, values) for graph, values in zip(graphs, inputs, strict=True)]
    results: dict[int, tuple[torch.Tensor, ...]] = {}
    waiting: dict[int, Waiting] = {}

    def go_on(rank: int, value: Any) -> None:
        try:
            waiting[rank] = runs[rank].send(value)
        except StopIteration as done:
            results[rank] = done.value

    for rank in range(len(runs)):
        go_on(rank, None)
    while waiting:
        ready = next((groups[call[1][-1]] for call in waiting.values() if _meet(groups[call[1][-1]], waiting)), None)
        if ready is None:
            raise DeadlockError
        for rank, value in zip(ready, _together([waiting.pop(rank) for rank in ready]), strict=True):
            go_on(rank, value)
    return [results[rank] for rank in range(len(runs))]


def _run(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Generator[Waiting, Any, Any]:
    values: dict[torch.fx.Node, Any] = {}
    given = iter(inputs)
    for node in graph.graph.nodes:
        args = torch.fx.map_arg(node.args, values.__getitem__)
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = operator.attrgetter(node.target)(graph)
        elif node.op == "output":
            return tuple(args[0])
        elif node.target is c10d.wait_tensor.default:
            values[node] = args[0]
        elif getattr(node.target, "namespace", "") == "_c10d_functional":
            values[node] = yield node.target, args
        else:
            values[node] = node.target(*args, **torch.fx.map_arg(node.kwargs, values.__getitem__))
    raise AssertionError("a graph without an output")


def _meet(group: Sequence[int], waiting: Mapping[int, Waiting]) -> bool:
    calls = [waiting.get(rank) for rank in group]
    if any(call is None for call in calls):
        return False
    first = calls[0]
    return all(
        call is not None and first is not None
        and call[0] is first[0] and call[1][1:] == first[1][1:] and call[1][0].shape == first[1][0].shape
        for call in calls
    )  # fmt: skip


def _together(calls: Sequence[Waiting]) -> list[torch.Tensor]:
    target, arguments = calls[0]
    values = [call[1][0] for call in calls]
    if target is c10d.all_gather_into_tensor.default:
        return [torch.cat(values)] * len(values)
    stack = torch.stack(values)
    total = {"sum": stack.sum(0), "avg": stack.mean(0), "max": stack.amax(0)}[arguments[1]]
    if target is c10d.reduce_scatter_tensor.default:
        return list(total.chunk(len(values)))
    assert target is c10d.all_reduce.default, target
    return [total] * len(values)
