"""What was recorded of a graph's nodes: sizes, and arguments by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.torch_interface.operators.schema import arguments_of

_NUMBERS = frozenset({int})


def tensors_of(recorded: Any) -> list[torch.Tensor]:
    """The tensors in what was recorded of a node."""
    values: Sequence[Any] = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
    return [item for item in values if isinstance(item, torch.Tensor)]


def dimensions_of(node: torch.fx.Node) -> list[tuple[int | None, ...]]:
    """The sizes of what a node gives, one tuple a tensor; None for a size that is no number."""
    return [known_sizes(item) for item in tensors_of(node.meta.get("val"))]


def known_sizes(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """The sizes of a tensor; None for a size that is no number."""
    shape = tuple(tensor.shape)
    if _NUMBERS.issuperset(map(type, shape)):
        return shape
    return tuple(None if isinstance(size, torch.SymInt) else size for size in shape)


def shapes_of(node: torch.fx.Node) -> list[tuple[int, ...]]:
    """The sizes of what a node gives that are numbers, one tuple a tensor."""
    return [tuple(size for size in shape if size is not None) for shape in dimensions_of(node)]


def named_arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call by their names in the schema, defaults included."""
    arguments = arguments_of(node.target) or ()
    found = {argument.name: argument.default for argument in arguments if argument.has_default}
    found.update(zip((argument.name for argument in arguments), node.args, strict=False))
    return {**found, **node.kwargs}
