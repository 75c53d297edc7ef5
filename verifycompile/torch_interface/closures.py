"""What a function closes over."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any


def closed_over(code: types.CodeType, cells: Iterable[types.CellType] | None) -> Iterator[tuple[str, Any]]:
    """Names and values of the variables of enclosing functions that a function uses; none that is not assigned yet."""
    for name, cell in zip(code.co_freevars, cells or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def values_closed_over(code: types.CodeType, cells: Iterable[types.CellType] | None) -> Iterator[Any]:
    """The values alone."""
    yield from (value for _, value in closed_over(code, cells))
