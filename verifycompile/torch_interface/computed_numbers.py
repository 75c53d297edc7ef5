"""What torch's own numbers give for expressions: ``SymInt`` and its like, of symbols of which nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import _NO_HINT, SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from verifycompile.torch_interface.derivation import is_derived_number

_TYPES = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class _NothingKnown(ShapeEnv):
    def bound_sympy(self, *_: Any, **__: Any) -> ValueRanges[Any]:
        return ValueRanges.unknown()


def computed(target: Any, numbers: Sequence[Any], expressions: Sequence[Any]) -> Any:
    """What a function of ``numbers``, as they are recorded, gives where they are ``expressions``."""
    nothing = _NothingKnown()
    given = [
        type(n)(SymNode(e, nothing, _TYPES[type(n)], _NO_HINT)) if isinstance(e, sympy.Basic) else e
        for n, e in zip(numbers, expressions, strict=True)
    ]
    found = target(*given)
    return found.node.expr if is_derived_number(found) else found
