"""Size symbols: solved divisibility guards, and the spec's symbols in terms of the implementation's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

import sympy

from verifycompile.program import Size
from verifycompile.torch_interface.shapes import divisor_in


def solve_divisibility(guards: Iterable[sympy.Basic]) -> dict[sympy.Symbol, sympy.Expr]:
    """``s -> k*t`` with a fresh ``t`` for every symbol that guards call a multiple of ``k``."""
    multiples: dict[sympy.Symbol, int] = {}
    for guard in guards:
        found = divisor_in(guard)
        if found is not None and found[1] > 1:
            symbol, divisor = found
            multiples[symbol] = math.lcm(multiples.get(symbol, 1), divisor)
    return {
        symbol: divisor * sympy.Symbol(f"{symbol.name}_{divisor}", integer=True, positive=True)
        for symbol, divisor in multiples.items()
    }


def substitute(size: Size, values: Mapping[sympy.Symbol, sympy.Expr]) -> Size:
    """``size`` with its symbols replaced, once and all together."""
    if isinstance(size, int):
        return size
    replaced = size.xreplace(dict(values))
    return int(replaced) if isinstance(replaced, sympy.Integer) else cast(sympy.Expr, replaced)


def remaining_guards(
    guards: Iterable[sympy.Basic], values: Mapping[sympy.Symbol, sympy.Expr]
) -> tuple[sympy.Basic, ...]:
    """The guards after substitution, without those that became trivially true and without repetitions."""
    remaining: dict[sympy.Basic, None] = {}
    for guard in guards:
        replaced = sympy.sympify(guard.xreplace(dict(values)))
        if replaced != sympy.true:
            remaining[replaced] = None
    return tuple(remaining)
