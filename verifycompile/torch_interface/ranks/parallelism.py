"""Whether a Dynamo graph is part of a parallel program at all. This imports little: plain models are asked as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from verifycompile.torch_interface.ranks.mesh import is_process_group, real_object
from verifycompile.torch_interface.ranks.rank_values import has_rank_operators


def has_parallelism(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """True where a Dynamo graph takes a DTensor, a mesh or a process group, or holds a collective."""
    for value in example_inputs:
        held = real_object(value)
        if isinstance(held, DTensor | DeviceMesh) or is_process_group(held):
            return True
    return has_rank_operators(graph)


def without_unread_meshes(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Erase meshes, and parts of meshes, that nothing reads, in place; the inputs that are left.

    Code asked for their size alone, which is a number in the graph.
    """
    left: list[Any] = []
    for placeholder, value in zip(graph.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        if isinstance(real_object(value), DeviceMesh):
            for part in tuple(placeholder.users):
                if part.op == "call_method" and part.target == "__getitem__" and not part.users:
                    graph.graph.erase_node(part)
            if not placeholder.users:
                graph.graph.erase_node(placeholder)
                continue
        left.append(value)
    graph.recompile()
    return tuple(left)
