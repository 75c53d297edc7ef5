"""What torch's own numbers give for expressions: ``SymInt`` and its like, of symbols of which nothing is known."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import _NO_HINT, SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map
from torch.utils._sympy.value_ranges import ValueRanges

from verifycompile.torch_interface.operators.derivation import is_derived_number

_TYPES = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class _NothingKnown(ShapeEnv):
    def bound_sympy(self, *_: Any, **__: Any) -> ValueRanges[Any]:
        return ValueRanges.unknown()


def computed(target: Any, args: Any, kwargs: Any) -> Any:
    """What a function of numbers gives, of which some are expressions."""
    nothing = _NothingKnown()

    def number(value: Any) -> Any:
        if not isinstance(value, sympy.Basic):
            return value
        kind: Any = torch.SymInt if value.is_integer else torch.SymBool if value.is_Boolean else torch.SymFloat
        return kind(SymNode(value, nothing, _TYPES[kind], _NO_HINT))

    args, kwargs = tree_map(number, (args, kwargs))
    found = target(*args, **kwargs)
    return found.node.expr if is_derived_number(found) else found
