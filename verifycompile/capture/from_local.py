"""Layouts that the program itself says: of plain inputs, by the ``DTensor.from_local`` calls that they feed, and of
plain results that it takes out of a DTensor, which says where they are whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch.fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.capture.boundary import Export
from verifycompile.capture.layouts import LayoutError, Placements, lift_placements
from verifycompile.torch_interface.dynamo.aot import Layout
from verifycompile.torch_interface.ranks.mesh import RootMesh, real_object


@dataclasses.dataclass(frozen=True)
class FedLayout:
    """``placements`` over the root mesh, of which ``axes`` are those that the mesh of the ``from_local`` has."""

    placements: Placements
    axes: frozenset[int]


_FROM_LOCAL_ARGUMENTS = ("local_tensor", "device_mesh", "placements")


def layouts_of_from_local(exported: Export, root: RootMesh) -> dict[int, FedLayout]:
    """Dynamo graph input -> layout of the ``DTensor.from_local`` calls that it feeds, where all agree."""
    placeholders = exported.traced.graph.graph.find_nodes(op="placeholder")
    positions = {node: position for position, node in enumerate(placeholders)}
    fed: dict[int, set[FedLayout | None]] = {}
    for node in exported.traced.graph.graph.find_nodes(op="call_function", target=DTensor.from_local):
        arguments: dict[str, Any] = dict(zip(_FROM_LOCAL_ARGUMENTS, node.args, strict=False))
        arguments.update(node.kwargs)
        local = arguments.get("local_tensor")
        position = positions.get(local) if isinstance(local, torch.fx.Node) else None
        if position is None:
            continue
        value = exported.traced.example_inputs[position]
        fed.setdefault(position, set()).add(_lifted(exported, arguments, positions, root, value.ndim))
    return {
        position: layout
        for position, layouts in fed.items()
        if len(layouts) == 1 and (layout := next(iter(layouts))) is not None
    }


def _lifted(
    exported: Export, arguments: Mapping[str, Any], positions: Mapping[torch.fx.Node, int], root: RootMesh, ndim: int
) -> FedLayout | None:
    mesh_node = arguments.get("device_mesh")
    if not isinstance(mesh_node, torch.fx.Node):
        return None
    position = positions.get(mesh_node)  # None for `mesh["tp"]` in the traced code
    held = mesh_node.meta.get("example_value") if position is None else exported.traced.example_inputs[position]
    mesh = real_object(held)
    if not isinstance(mesh, DeviceMesh):
        return None
    placements = arguments.get("placements")
    try:
        lifted = lift_placements("", placements or (Replicate(),) * mesh.ndim, mesh, root, ndim)
        return FedLayout(lifted, frozenset(axis for axes in root.spans(mesh) or () for axis in axes))
    except LayoutError:
        return None


def layout_taken_from(exported: Export, index: int) -> Layout | None:
    """What the DTensor says of a result of the Dynamo graph that is its ``full_tensor()`` or ``to_local()``.

    ``DTensor.from_local`` believes what it is told, so that it may be wrong. None for any other result.
    """
    output = next(iter(exported.traced.graph.graph.find_nodes(op="output")))
    result = output.args[0][index]
    if not isinstance(result, torch.fx.Node) or result.op != "call_method":
        return None
    if result.target not in ("full_tensor", "to_local") or not isinstance(result.args[0], torch.fx.Node):
        return None
    held = result.args[0].meta.get("example_value")
    if not isinstance(held, DTensor):
        return None
    placements: tuple[Placement, ...] = held.placements
    if result.target == "full_tensor":
        placements = (Replicate(),) * len(placements)
    return Layout(held.device_mesh, placements, tuple(held.shape), tuple(held.stride()))
