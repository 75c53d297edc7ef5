"""Blockers for tensors whose size differs by rank: shards of a dimension that the mesh axis does not divide."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import sympy
import torch
import torch.fx

from verifycompile.program import Blocker
from verifycompile.torch_interface.shapes import shape_of
from verifycompile.torch_interface.value_names import value_name


def uneven_blockers(graph: torch.fx.GraphModule, coordinates: AbstractSet[sympy.Symbol]) -> tuple[Blocker, ...]:
    """One blocker for every node with a dimension whose size is an expression of this rank's coordinate."""
    if not coordinates:
        return ()
    blockers: list[Blocker] = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for dimension, size in enumerate(shape_of(value)):
            if not isinstance(size, int) and size.free_symbols & coordinates:
                message = f"the size of dimension {dimension} of `{value_name(node)}` differs by rank: {size}."
                blockers.append(Blocker(node, "VC204", message))
                break
    return tuple(blockers)
