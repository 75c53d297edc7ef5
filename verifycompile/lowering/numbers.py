"""Numbers that a program computes from symbolic sizes: what is recorded of them is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch
import torch.fx

from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.computed_numbers import computed

if TYPE_CHECKING:
    from verifycompile.lowering.lower import Lowering


def number_of(lowering: Lowering, node: torch.fx.Node, recorded: Any) -> Any:
    """What the operands of a call are known to give: what is ``recorded`` where none of them has symbolic sizes.

    Raises ``UnsupportedError`` for a number that they do not say, and whatever torch does for operands that do not fit.
    """
    sizes = lowering.sizes
    numbers: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args]
    if not isinstance(numbers[0], torch.Tensor):
        known = [sizes.number(number) for number in numbers]
        return computed(node.target, numbers, known) if any(map(_is_symbolic, known)) else recorded
    shape = numbers[0].shape
    is_known = node.args[0] not in lowering.blockers
    if is_known and not any(isinstance(size, torch.SymInt) for size in shape):
        return recorded
    if not is_known or node.target is not torch.ops.aten.sym_size.int:
        raise UnsupportedError(UNREPRESENTABLE, f"the number `{node.target}` gives is not known")
    return sizes.number(shape[numbers[1]])


def _is_symbolic(number: Any) -> bool:
    return isinstance(number, sympy.Basic)
