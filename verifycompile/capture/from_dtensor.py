"""Plain results that the program takes out of a DTensor, which says where they are whole."""

from __future__ import annotations

import torch.fx
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.capture.boundary import Export
from verifycompile.torch_interface.aot import Layout


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
