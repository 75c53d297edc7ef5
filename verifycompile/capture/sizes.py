"""Size symbols: solved divisibility guards, the spec's symbols by the implementation's; sizes that differ by rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import cast

import sympy
import torch
import torch.fx

from verifycompile.program import Blocker, Size
from verifycompile.torch_interface.operators.shapes import divisor_in, shape_of
from verifycompile.torch_interface.source_lines.value_names import value_name


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


def uneven_blockers(graph: torch.fx.GraphModule, coordinates: AbstractSet[sympy.Symbol]) -> tuple[Blocker, ...]:
    """One blocker for every node with a size that is an expression of this rank's coordinate, as of uneven shards."""
    if not coordinates:
        return ()
    blockers: list[Blocker] = []
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for dimension, size in enumerate(shape_of(value)):
            if not isinstance(size, int) and size.free_symbols & coordinates:
                message = f"the size of dimension {dimension} of `{value_name(node)}` differs by rank: {size}."
                blockers.append(Blocker(node, "VC204", message))
                break
    return tuple(blockers)
