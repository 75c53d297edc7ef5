"""Tensors that Dynamo stores in its graph because they are static, as inputs of the graph.

Dynamo does so with the parameters and states of a ``torch.optim.Optimizer``, and with modules that are part of the
graph. What they hold is no more constant than what is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx


def with_results(graph: torch.fx.GraphModule, names: Sequence[str]) -> torch.fx.GraphModule:
    """A copy of a Dynamo graph that returns the nodes ``names`` too, behind its own results."""
    copy = torch.fx.GraphModule(graph, torch.fx.Graph())
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    results: Any = copy.graph.graph_copy(graph.graph, copies)
    by_name = {node.name: copied for node, copied in copies.items()}
    copy.graph.output((*results, *(by_name[name] for name in names)))
    copy.meta.update(graph.meta)
    for node, copied in copies.items():
        if hasattr(node, "_dynamo_source"):
            copied._dynamo_source = node._dynamo_source  # type: ignore[attr-defined]  # a private attribute of torch
    copy._param_name_to_source = getattr(graph, "_param_name_to_source", None)  # type: ignore[assignment]  # a private attribute of torch
    copy.recompile()
    return copy


def lift_attributes(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, tuple[Any, ...]]:
    """The graph with its static tensors as further inputs behind its own; the graph itself where it has none."""
    sources: dict[str, Any] = dict(getattr(graph, "_param_name_to_source", None) or {})
    stored: dict[str, torch.Tensor] = {
        **dict(graph.named_parameters(remove_duplicate=False)),
        **dict(graph.named_buffers(remove_duplicate=False)),
    }
    used = {
        str(node.target): stored[str(node.target)]
        for node in graph.graph.find_nodes(op="get_attr")
        if str(node.target) in sources and str(node.target) in stored
    }
    if not used:
        return graph, tuple(example_inputs)
    copy = with_results(graph, ())
    placeholders = copy.graph.find_nodes(op="placeholder")
    last = placeholders[-1] if placeholders else copy.graph._root
    for name, value in used.items():
        reads = [node for node in copy.graph.find_nodes(op="get_attr") if str(node.target) == name]
        with copy.graph.inserting_after(last):
            last = copy.graph.placeholder(f"{reads[0].name}_stored")
        last.meta = {**reads[0].meta, "example_value": reads[0].meta.get("example_value", value)}
        last._dynamo_source = sources[name]
        names = [read.name for read in reads]
        for read in reads:
            read.replace_all_uses_with(last)
            copy.graph.erase_node(read)
        last._rename(names[0])
        # Nothing else of the graph's own: what is left of its attributes are constants.
        if name in dict(copy.named_parameters()) or name in dict(copy.named_buffers()):
            delattr(copy, name)
    copy._param_name_to_source = {  # type: ignore[assignment]  # a private attribute of torch
        name: source for name, source in sources.items() if name not in used and hasattr(copy, name)
    }
    copy.recompile()
    return copy, (*example_inputs, *used.values())
