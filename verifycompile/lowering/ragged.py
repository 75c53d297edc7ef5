"""Calls with rows whose number is read from data: their values, and what torch recorded of them."""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.lowering.sizes import Sizes
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.ragged import call_ragged
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.row_values import Filled, Ragged, Sorted, Unsorted, is_ragged
from verifycompile.rewrites.rows import laid_out

__all__ = ["call_ragged", "check_ragged", "laid_out"]


def check_ragged(builder: Builder, sizes: Sizes, node: torch.fx.Node, value: Any, recorded: torch.Tensor) -> None:
    """All sizes but the number of rows must be those that torch recorded; a new symbol is that number.

    Raises ``UnsupportedError``.
    """
    shape = [size.node.expr if isinstance(size, torch.SymInt) else size for size in recorded.shape]
    unknown = [d for d, size in enumerate(shape) if not isinstance(size, int) and sizes.is_unknown(size)]
    if isinstance(value, (Sorted, Unsorted)):
        _require_places(node, value, shape)
        return
    view = value.row if isinstance(value, Filled) else value.view if isinstance(value, Ragged) else value
    found = list(builder.shape(view))
    sorting = sizes.counts.sortings.get(value.rows) if isinstance(value, Ragged) else None
    if isinstance(value, Ragged) and sorting is not None and not unknown:
        found[value.dim] = sorting.length
    expected = [value.dim] if is_ragged(value) and (sorting is None or unknown) else []
    if len(found) == len(shape) and unknown == expected:
        for dim in unknown:
            found[dim] = shape[dim]
        if all(sympy.simplify(sympy.sympify(a) - b) == 0 for a, b in zip(found, shape, strict=True)):
            for dim in unknown:
                symbol = shape[dim]
                if isinstance(value, Ragged) and isinstance(symbol, sympy.Symbol):
                    sizes.counts.views.setdefault(symbol, builder.sum(value.rows.present, [0]))
            return
    raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, its declaration {found}")


def _require_places(node: torch.fx.Node, value: Sorted | Unsorted, shape: list[Any]) -> None:
    """Of all rows there are as many as torch recorded; of rows that are read from data, some number."""
    fits = len(shape) == 1 and (value.source is not None or sympy.simplify(shape[0] - value.length) == 0)
    if not fits:
        raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, where rows are sorted")
