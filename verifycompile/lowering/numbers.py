"""Numbers that a program computes from symbolic sizes: what is recorded of them is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from verifycompile.ir.term import View
from verifycompile.lowering.recorded import is_size
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.dynamo.computed_numbers import computed
from verifycompile.torch_interface.operators.prims import READ_NUMBER

if TYPE_CHECKING:
    from verifycompile.lowering.lower import Lowering


def number_of(lowering: Lowering, node: torch.fx.Node, recorded: Any) -> Any:
    """What the values of a call's operands give: what is ``recorded`` where no symbolic size is among them.

    Raises ``UnsupportedError`` for a number that they do not say, and whatever torch does for operands that do not fit.
    """
    args: Any = lowering.argument(node.args, False)
    kwargs = {name: lowering.argument(value, False) for name, value in node.kwargs.items()}
    if all(map(is_size, node.all_input_nodes)):
        is_symbolic = any(isinstance(number, sympy.Basic) for number in tree_leaves((args, kwargs)))
        return computed(node.target, args, kwargs) if is_symbolic else recorded
    if node.target is READ_NUMBER:
        return recorded
    if node.target is not torch.ops.aten.sym_size.int:
        raise UnsupportedError(UNREPRESENTABLE, f"the number `{node.target}` gives is not known")
    tensor, dim = args
    if isinstance(tensor, View):
        return lowering.builder.shape(tensor)[dim]
    return lowering.read_rows.size(tensor, dim, recorded)
