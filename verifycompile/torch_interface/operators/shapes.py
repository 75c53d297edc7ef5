"""Symbolic sizes: sympy expressions behind SymInts, guards of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import sympy
import torch
import torch._dynamo
from torch._guards import TracingContext
from torch.utils._sympy.functions import FloorDiv, Mod

from verifycompile.program import Size


def size_of(value: Any) -> Size:
    """A size as an int or a sympy expression."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        return int(expression) if expression.is_Integer else expression
    return int(value)


def shape_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    """Shape of a fake or real tensor."""
    return tuple(size_of(dimension) for dimension in tensor.shape)


def symbol_of(value: Any) -> sympy.Symbol | None:
    """The symbol of a SymInt that is a bare symbol."""
    if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
        return value.node.expr
    return None


def trace_guards(context: TracingContext) -> tuple[sympy.Basic, ...]:
    """What the trace assumed about its size symbols, in those that it kept: equal sizes have one symbol."""
    fake_mode = context.fake_mode
    if fake_mode is None or fake_mode.shape_env is None:
        return ()
    environment = fake_mode.shape_env
    return tuple(environment.replace(guard.expr) for guard in environment.guards)


def keep_guards(guards: Iterable[sympy.Basic], sizes: Mapping[sympy.Symbol, sympy.Expr]) -> None:
    """Guard the frame under compilation by ``guards``, which may be of another trace: what was verified rests on them.

    ``sizes``: symbols of the frame as multiples of those in ``guards``.
    """
    fake_mode = TracingContext.get().fake_mode
    if fake_mode is None or fake_mode.shape_env is None:
        return
    own: dict[sympy.Basic, Any] = {}
    for symbol, value in sizes.items():
        factor, multiple = value.as_coeff_Mul()
        own[multiple] = FloorDiv(symbol, factor)
    for guard in guards:
        fake_mode.shape_env.evaluate_expr(guard.xreplace(own))


def divisor_in(guard: sympy.Basic) -> tuple[sympy.Symbol, int] | None:
    """``(s, k)`` for a guard that says that the symbol ``s`` is a multiple of ``k``, else None."""
    if not isinstance(guard, sympy.Eq):
        return None
    for side, other in ((guard.lhs, guard.rhs), (guard.rhs, guard.lhs)):
        if other != 0 or not isinstance(side, Mod | sympy.Mod):
            continue
        dividend, divisor = side.args
        coefficient, symbol = cast(sympy.Expr, dividend).as_coeff_Mul()
        if (
            isinstance(symbol, sympy.Symbol)
            and isinstance(divisor, sympy.Integer)
            and isinstance(coefficient, sympy.Integer)
        ):
            return symbol, int(divisor) // math.gcd(int(coefficient), int(divisor))
    return None


def mark_dynamic(tensor: torch.Tensor, dimension: int) -> None:
    """Ask Dynamo to keep a dimension symbolic where it can. Leaves a mark on ``tensor``."""
    torch._dynamo.maybe_mark_dynamic(tensor, dimension)
