"""Whether two ranks' graphs have the same boundary: what enters and leaves them, and how it is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verifycompile.capture.boundary import Export
from verifycompile.capture.meshes import Root
from verifycompile.capture.ranks.common_graph import DifferentGraphsError
from verifycompile.torch_interface.dynamo.aot import Flat, Layout
from verifycompile.torch_interface.ranks.mesh import real_object

Boundary = tuple[tuple[str, Any], ...]
"""What is said of each input and output, in words, and what the graph has there."""


def boundary_of(exported: Export, root: Root) -> Boundary:
    """Comparable with that of another rank. Call it while this process acts as the rank."""
    found: list[tuple[str, Any]] = []
    for position, flat in enumerate(exported.joint.inputs):
        found.append((f"the input {position} of the graph", (_name(exported, flat), *_described(flat, root))))
    for name, value in zip(exported.names, exported.traced.example_inputs, strict=True):
        flags = (value.requires_grad, str(value.dtype)) if isinstance(value, torch.Tensor) else ()
        found.append((f"`{name.name}`", (name.name, name.role, *flags)))
    found.extend(
        (f"the output {position} of the graph", _described(flat, root))
        for position, flat in enumerate(exported.joint.outputs)
    )
    left = exported.traced.left_behind
    constants = {place: repr(leaf) for place, leaf in left.returned.items() if not isinstance(leaf, torch.fx.Node)}
    found.append(("what is returned", (exported.results, exported.passed_through, exported.places, constants)))
    return tuple(found)


def _name(exported: Export, flat: Flat) -> str:
    return exported.names[flat.index].name if 0 <= flat.index < len(exported.names) else ""


def _described(flat: Flat, root: Root) -> tuple[Any, ...]:
    layout = None if flat.layout is None else _layout(flat.layout, root)
    return flat.origin, flat.part, flat.index, flat.node is None, flat.requires_grad, layout


def _layout(layout: Layout, root: Root) -> tuple[Any, ...]:
    spans = root.mesh.spans(real_object(layout.mesh))
    return layout.placements, tuple(str(size) for size in layout.global_shape), spans


def require_one_boundary(boundaries: Mapping[int, Boundary]) -> None:
    """Raises ``DifferentGraphsError`` where two ranks' boundaries differ."""
    first, *others = boundaries
    for rank in others:
        if len(boundaries[rank]) != len(boundaries[first]):
            raise DifferentGraphsError(f"rank {rank} has other inputs or outputs than rank {first}", None)
        for (what, ours), (_, theirs) in zip(boundaries[first], boundaries[rank], strict=True):
            if ours != theirs:
                raise DifferentGraphsError(f"{what} is another on rank {rank} than on rank {first}", None)
