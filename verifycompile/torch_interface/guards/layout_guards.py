"""A frame is verified again once a tensor enters that a verified graph returned in another layout.

A partial sum is a tensor like any other to Dynamo: without this, a function that was verified with a whole value would
run unasked on a part of one.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from verifycompile.torch_interface.dynamo.returned import ReturnedLayout, returned_layout
from verifycompile.torch_interface.dynamo.sources import source_name
from verifycompile.torch_interface.guards.frame_guards import Check, verify_again_unless


def verify_again_where_layouts_change(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, whole_by_default: bool
) -> None:
    """Adds a guard to the frame under compilation. Call it inside a Dynamo backend.

    ``whole_by_default``: a tensor of which nothing is known is verified as one that is whole on every rank.
    """
    checks = list(_checks(graph, example_inputs, whole_by_default))
    if checks:
        verify_again_unless(checks, "the tensors are laid out as they were when the frame was verified")


def _checks(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], whole_by_default: bool) -> Iterator[Check]:
    for node, value in zip(graph.graph.find_nodes(op="placeholder"), example_inputs, strict=False):
        is_plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter | DTensor)
        name = source_name(node) if is_plain else ""
        if name:
            yield _of_value(compile(name, "<input>", "eval"), returned_layout(value), whole_by_default)


def _of_value(code: types.CodeType, known: ReturnedLayout | None, whole_by_default: bool) -> Check:
    def placements_of(layout: ReturnedLayout | None) -> tuple[Placement, ...] | None:
        return None if layout is None or (whole_by_default and layout.is_whole) else layout.placements

    expected = placements_of(known)

    def check(local_values: dict[str, Any]) -> bool:
        try:
            value = eval(code, {"L": local_values})  # noqa: S307 - Dynamo's own expression for the input
        except (LookupError, AttributeError, NameError):
            return expected is None
        return placements_of(returned_layout(value)) == expected

    return check
