"""Whole numbers that are known, written as counters in a graph: proofs read them as if the program had counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten

_MOST_RUNS = 32


def write_out(graph: torch.fx.GraphModule, node: torch.fx.Node, numbers: torch.Tensor) -> None:
    """Let what reads ``node`` read a tensor of ``numbers`` that the graph makes, in place."""
    users = list(node.users)
    if not users:
        return
    first = next(other for other in graph.graph.nodes if other.op not in ("placeholder", "get_attr"))
    with graph.graph.inserting_before(first):
        made = _made(graph, node, numbers)
    for user in users:
        user.replace_input_with(node, made)


def _made(graph: torch.fx.GraphModule, node: torch.fx.Node, numbers: torch.Tensor) -> torch.fx.Node:
    held: torch.Tensor = node.meta["val"]
    runs = None if numbers.dtype is torch.bool else _runs(numbers.flatten().tolist())
    if runs is None:
        name = f"held_{node.name}"
        setattr(graph, name, numbers)
        return _described(graph.graph.create_node("get_attr", name), node, held)
    if not numbers.dim():
        return _called(graph, node, aten.full.default, ([], runs[0].start), held)
    pieces = [
        _called(graph, node, aten.arange.start_step, (run.start, run.stop, run.step), held.new_empty((len(run),)))
        for run in runs
    ]
    whole = pieces[0]
    if len(pieces) > 1:
        whole = _called(graph, node, aten.cat.default, (pieces,), held.new_empty((numbers.numel(),)))
    return whole if numbers.dim() == 1 else _called(graph, node, aten.view.default, (whole, list(numbers.shape)), held)


def _called(
    graph: torch.fx.GraphModule, like: torch.fx.Node, target: Any, args: tuple[Any, ...], value: torch.Tensor
) -> torch.fx.Node:
    made = target in (aten.full.default, aten.arange.start_step)
    options: dict[str, Any] = {"dtype": value.dtype, "device": torch.device("cpu"), "pin_memory": False} if made else {}
    return _described(graph.graph.call_function(target, args, options), like, value)


def _described(node: torch.fx.Node, like: torch.fx.Node, value: torch.Tensor) -> torch.fx.Node:
    node.meta = {**like.meta, "val": value}
    return node


def _runs(numbers: Sequence[int]) -> list[range] | None:
    """The numbers as ranges one after the other; None where those are too many."""
    runs = list(itertools.islice(_ranges(numbers), _MOST_RUNS + 1))
    return runs if len(runs) <= _MOST_RUNS else None


def _ranges(numbers: Sequence[int]) -> Iterator[range]:
    start = 0
    while start < len(numbers):
        stop = start + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1:
            stop += 1
        yield range(numbers[start], numbers[stop - 1] + 1)
        start = stop
