"""What torch says of the operators of a captured graph: names, aliases, decompositions."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import sympy
import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload


def operator_name(target: object) -> str | None:
    """``aten.mm.default`` for an operator overload, None for any other call target."""
    return _name(target) if isinstance(target, OpOverload) else None


@functools.cache
def _name(target: OpOverload) -> str:
    return str(target)


@functools.cache
def is_view(target: object) -> bool:
    """Whether an operator only looks at the memory of an argument in another way."""
    if not isinstance(target, OpOverload):
        return False
    aliases = [result.alias_info for result in target._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def returns_fresh_memory(target: object) -> bool:
    """Whether no result of an operator can be a view of an argument."""
    if not isinstance(target, OpOverload):
        return False
    returns = target._schema.returns
    return all(result.alias_info is None for result in returns) and "reshape" not in str(target)


def decomposition(target: object) -> object | None:
    """Torch's own reference decomposition of an operator, or None."""
    return decomposition_table.get(target) if isinstance(target, OpOverload) else None


def symbolic_expression(size: object) -> sympy.Expr | None:
    """The sympy expression of a symbolic integer, None for anything else."""
    return size.node.expr if isinstance(size, torch.SymInt) else None


def size_hint(size: int | torch.SymInt, values: Mapping[sympy.Symbol, int]) -> int | None:
    """The integer that ``size`` stands for: its expression under ``values``, else what it was traced with."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    missing = expression.free_symbols - values.keys()
    if not missing:
        return int(expression.subs(values))
    hint = size.node.hint
    return None if hint is None else int(hint)
