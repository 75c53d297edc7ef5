"""Dimensions that are counted as a whole."""

from __future__ import annotations

from verifycompile.ir.algebra import IOTA
from verifycompile.ir.size import Size
from verifycompile.ir.term import View


def whole_dim(view: View, shape: tuple[Size, ...]) -> int | None:
    """The dimension that an ``iota`` view counts from first to last, else None."""
    if view.term.operation is not IOTA or view.coefficient != 1 or len(view.axes[0]) != 1:
        return None
    dim, divisor, size = view.axes[0][0]
    return dim if divisor == 1 and dim >= 0 and shape[dim] == size else None
