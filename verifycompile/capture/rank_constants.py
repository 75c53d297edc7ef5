"""Blockers for numbers in a graph that are this rank's and would differ on another."""

from __future__ import annotations

import torch.fx

from verifycompile.program import Blocker
from verifycompile.torch_interface.observation import Read
from verifycompile.torch_interface.rank_reads import ExportRead


def rank_constant_blockers(
    graph: torch.fx.GraphModule,
    reads: tuple[Read, ...],
    export_reads: tuple[ExportRead, ...],
    reason: str = "",
    node: torch.fx.Node | None = None,
) -> tuple[Blocker, ...]:
    """One blocker a read. A read by torch blocks every node of the operation in which it happened.

    ``reason``: how the graphs of two ranks differ; ``node``: where they do.
    """
    blockers = [
        Blocker(
            node,
            "VC203",
            f"`{read.reader}` in `{read.function}` ({read.place}) is a constant of the graph that was captured on this "
            f"rank; other ranks run other graphs{reason}.",
        )
        for read in reads
    ]
    for stack_trace in dict.fromkeys(read.stack_trace for read in export_reads):
        readers = dict.fromkeys(f"`{read.reader}`" for read in export_reads if read.stack_trace == stack_trace)
        message = (
            f"torch.distributed put this rank's number into the graph as a constant (read by {', '.join(readers)})."
        )
        blockers.extend(Blocker(node, "VC203", message) for node in _nodes_of(graph, stack_trace) or (None,))
    return tuple(blockers)


def _nodes_of(graph: torch.fx.GraphModule, stack_trace: str | None) -> tuple[torch.fx.Node, ...]:
    if stack_trace is None:
        return ()
    return tuple(
        node for node in graph.graph.nodes if node.op == "call_function" and node.meta.get("stack_trace") == stack_trace
    )
