"""Concatenations opened: what is done to every element, or over all of them, is done to the pieces.

So the norm of a stack of norms is the root of the sum of all squares, and a maximum over a stack the largest one.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.algebra import open_view
from verifycompile.ir.relabel import compose, substitute
from verifycompile.ir.size import exact_quotient, product, quotient
from verifycompile.ir.term import CONSTANT, Digit, Operation, View

CONCATENATE = Operation("concatenate", jointly_linear=True, copies=True)
STACK = Operation("stack", jointly_linear=True, copies=True)
"""Pieces of equal size: only the number of the piece is read wholly, so that their own dimension may be sharded."""


def concatenated_dim(view: View) -> int | None:
    """The dimension along which a view is one whole concatenation, or None."""
    if view.term.operation is STACK:
        (fresh,) = view.term.fresh
        digits = view.axes[fresh]
        if len(digits) != 1:
            return None
        dim, divisor, size = digits[0]
        if dim == CONSTANT or product((divisor, size)) != view.shape[dim]:
            return None
        others = (d for k, axis in enumerate(view.axes) if k != fresh for d in axis if d[0] == dim)
        # What reads the number of the piece elsewhere, as a diagonal does, is no piece.
        return dim if all(exact_quotient(divisor, product(d[1:])) is not None for d in others) else None
    return whole_dim_of_fresh(view) if view.term.operation is CONCATENATE else None


def whole_dim_of_fresh(view: View) -> int | None:
    """The dimension that is the only fresh axis of the view's term, from first to last, or None."""
    (fresh,) = view.term.fresh
    digits = view.axes[fresh]
    if len(digits) != 1:
        return None
    dim, _, size = digits[0]
    whole = dim != CONSTANT and size == view.shape[dim]
    return dim if whole and sum(d[0] == dim for axis in view.axes for d in axis) == 1 else None


def pieces_of(view: View, dim: int) -> list[View]:
    """The concatenated views, for a view whose ``concatenated_dim`` is ``dim``; with its coefficient."""
    if view.term.operation is STACK:
        length = quotient(view.shape[dim], len(view.term.operands))
        shape = (*view.shape[:dim], length, *view.shape[dim + 1 :])
        return [compose(piece, view.axes, shape).scaled(view.coefficient) for piece in view.term.operands]
    opened = open_view(view)
    pieces: list[View] = []
    for operand, core in zip(opened.operands, opened.cores, strict=True):
        length = product(opened.shape[d] for d in core)
        shape = (*view.shape[:dim], length, *view.shape[dim + 1 :])
        replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(view.shape)}
        inner = length
        for d in core:
            size = opened.shape[d]
            inner = quotient(inner, size)
            replacement[d] = [(dim, inner, size)]
        pieces.append(substitute(operand, replacement, shape).scaled(view.coefficient))
    return pieces


def opened_stack(view: View) -> View:
    """The piece itself where the view is within one piece of a stack."""
    while view.term.operation is STACK:
        (fresh,) = view.term.fresh
        digits = view.axes[fresh]
        if len(digits) != 1 or digits[0][0] != CONSTANT or not isinstance(number := digits[0][1], int):
            break
        view = compose(view.term.operands[number], view.axes, view.shape).scaled(view.coefficient)
    return view
