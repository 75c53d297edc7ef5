"""Changes of the ranks' graphs that make them wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

MUTANTS = ("parts not summed", "parts summed twice", "order of the shards")
"""What is done to one collective of every rank: the first sum, the last sum, the last gather (else sum)."""

_C10D = torch.ops.c10d
_ALL_REDUCE, _REDUCE_SCATTER = _C10D.allreduce_.default, _C10D._reduce_scatter_base_.default
_SUMS = (_ALL_REDUCE, _REDUCE_SCATTER)
_GATHERS = (_C10D._allgather_base_.default, _C10D.allgather_.default)


def mutate(graphs: Sequence[GraphModule], mutant: str) -> None:
    """Change every rank's graph as ``mutant`` says."""
    for rank, graph in enumerate(graphs):
        if mutant == "parts not summed":
            _leave_out(graph.graph, _of_kind(graph.graph, _SUMS)[0], rank)
        elif mutant == "parts summed twice":
            _change(graph.graph, _of_kind(graph.graph, _SUMS)[-1], torch.ops.aten.mul.Tensor, len(graphs))
        else:
            found = _of_kind(graph.graph, _GATHERS) or _of_kind(graph.graph, _SUMS)
            _change(graph.graph, found[-1], torch.ops.aten.roll.default, [1], [0])
        graph.recompile()


def _of_kind(graph: Graph, kinds: Sequence[object]) -> list[Node]:
    return [node for node in graph.nodes if node.target in kinds]


def _result(collective: Node) -> Node:
    """The tensor that a collective returns, in a list or as the first of two."""
    (found,) = [user for user in collective.users if user.args[1] == 0]
    (tensor,) = [*found.users] if isinstance(collective.meta["val"][0], list | tuple) else [found]
    return tensor


def _change(graph: Graph, collective: Node, operator: Any, *arguments: Any) -> None:
    result = _result(collective)
    with graph.inserting_after(result):
        changed = graph.call_function(operator, (result, *arguments))
    result.replace_all_uses_with(changed, lambda user: user is not changed)


def _leave_out(graph: Graph, collective: Node, rank: int) -> None:
    """Every rank goes on with its own part of the sum."""
    result = _result(collective)
    if collective.target is _ALL_REDUCE:
        own = collective.args[0][0]  # type: ignore[index]
    else:
        rows = result.meta["val"].shape[0]
        with graph.inserting_before(collective):
            own = graph.call_function(
                torch.ops.aten.slice.Tensor, (collective.args[1], 0, rank * rows, (rank + 1) * rows)
            )
    result.replace_all_uses_with(own)  # type: ignore[arg-type]
    for user in list(collective.users):
        for inner in list(user.users):
            graph.erase_node(inner)
        graph.erase_node(user)
    graph.erase_node(collective)
