"""Calls without a value, and those of tensors without elements: what is recorded of them must be so at all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from verifycompile.ir.size import Size, exact_quotient
from verifycompile.ir.term import View, identity_view
from verifycompile.lowering.recorded import DECIDES_SIZE
from verifycompile.rewrites.operations import UNKNOWN
from verifycompile.torch_interface.operators.derivation import is_derived_number

if TYPE_CHECKING:
    from verifycompile.lowering.lower import Lowering


def without_elements(lowering: Lowering, node: torch.fx.Node, shapes: Sequence[tuple[Size, ...]]) -> Any:
    """Whatever computes them: a tensor without elements equals every other one of its shape. None if some may have."""
    if not _is_fixed(lowering, node):
        return None
    empty = [lowering.builder.full(0, shape) for shape in shapes]
    return empty[0] if isinstance(node.meta["val"], torch.Tensor) else tuple(empty)


def unknown_value(lowering: Lowering, node: torch.fx.Node) -> Any:
    """Terms that equal nothing else, of the shapes that are recorded."""
    recorded = node.meta.get("val")
    if isinstance(recorded, (list, tuple)):
        return tuple(_unknown_tensor(lowering, node, v, k) for k, v in enumerate(recorded))
    return _unknown_tensor(lowering, node, recorded, 0)


def _unknown_tensor(lowering: Lowering, node: torch.fx.Node, recorded: Any, position: int) -> View | None:
    if not isinstance(recorded, torch.Tensor) or node.target in DECIDES_SIZE or not _is_fixed(lowering, node):
        return None  # the declaration alone says the size, or nothing does
    shape = (*lowering.builder.mesh, *lowering.sizes.shape(recorded))
    if any(size != 0 and exact_quotient(size, size) is None for size in shape):
        return None  # of a size that depends on the rank and may be zero: no digits say an index
    term = lowering.pool.intern(UNKNOWN, (lowering.side, node.name, position), (), shape, len(shape), 0, (), ())
    return identity_view(term)


def _is_fixed(lowering: Lowering, node: torch.fx.Node) -> bool:
    """Whether what is recorded of a call is so at all sizes: all that it takes is known, and has no symbols."""
    values, operands = lowering.values, node.all_input_nodes
    if any(o not in values or (values[o] is None and o in lowering.blockers) for o in operands):
        return False
    held = tree_leaves((node.args, dict(node.kwargs), [operand.meta.get("val") for operand in operands]))
    numbers = [n for value in held for n in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    return not any(map(is_derived_number, numbers))
