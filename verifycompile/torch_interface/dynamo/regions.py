"""Regions of a Dynamo graph that are graphs of their own, as activation checkpointing makes them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

_REGIONS = (torch.ops.higher_order.tag_activation_checkpoint, torch.ops.higher_order.wrap)
"""Called with the region's graph and its operands; a region computes what its graph does."""


def with_regions_inlined(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with the bodies of its regions in their places, as it is read; it is not to be run.

    ``module`` itself where it has none.
    """
    if not any(_body(module, node) is not None for node in module.graph.nodes):
        return module
    graph, held = torch.fx.Graph(), dict[str, Any]()
    graph.output(_copy(module, graph, {}, held))
    return torch.fx.GraphModule(held, graph)


def _body(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.GraphModule | None:
    if node.op != "call_function" or node.target not in _REGIONS or not node.args:
        return None
    body = node.args[0]
    found = getattr(module, str(body.target), None) if isinstance(body, torch.fx.Node) else None
    return found if isinstance(found, torch.fx.GraphModule) else None


def _copy(
    module: torch.fx.GraphModule, graph: torch.fx.Graph, values: dict[torch.fx.Node, Any], held: dict[str, Any]
) -> Any:
    """Copy the nodes of ``module`` into ``graph``, but for those in ``values``; the results.

    ``held``: the attributes of the copy. Two regions may use one name for different ones.
    """
    for node in module.graph.nodes:
        if node in values:
            continue
        if node.op == "output":
            return torch.fx.map_arg(node.args[0], values.__getitem__)
        body = _body(module, node)
        read = values.get(node.args[0]) if node.target is operator.getitem and node.args else None
        if body is not None:
            operands = [values[o] if isinstance(o, torch.fx.Node) else o for o in node.args[1:]]
            inputs = body.graph.find_nodes(op="placeholder")
            values[node] = _copy(body, graph, dict(zip(inputs, operands, strict=False)), held)
        elif isinstance(read, (tuple, list)):
            values[node] = read[node.args[1]]
        else:
            copied = values[node] = graph.node_copy(node, values.__getitem__)
            if node.op in ("get_attr", "call_module"):
                own = operator.attrgetter(str(node.target))(module)
                if held.get(str(node.target), own) is not own:
                    copied.target = f"{node.target}_of_{copied.name}"
                held[str(copied.target)] = own
    return None
