"""Windows: contiguous parts of a dimension that no digits spell, such as the shards of a dimension divided unevenly.

How they move out of operations is in ``window_moves.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir import relabel
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Digit, Operation, TermPool, View

WINDOW = Operation("contiguous_part", linear=frozenset({0}), copies=True)
"""Attributes: the first position. The operand's dimension is a core, the window's a fresh axis."""
RANGE = Operation("within_range", indicator=True)
"""Attributes: first position, and the one past the last. One where the position lies between."""


@dataclasses.dataclass(frozen=True)
class Windowed:
    """A view as a window of ``source``, whose dimension ``dim`` is whole."""

    start: int
    source: View


def window_at(view: View, dim: int) -> Windowed | None:
    """What the view is a window of along ``dim``, where it reads a window term from first to last."""
    term = view.term
    if term.operation is not WINDOW:
        return None
    (fresh,) = term.fresh
    if not is_single(view, dim) and view.axes[fresh] != ((dim, 1, view.shape[dim]),):
        return None
    if any(digit[0] == dim for k, axis in enumerate(view.axes) if k != fresh for digit in axis):
        return None
    (operand,) = term.operands
    full: Size = 1
    digits: dict[int, Digit] = {}
    for index in reversed(term.cores[0]):
        digits[index] = (dim, full, term.index_sizes[index])
        full = product((full, term.index_sizes[index]))
    axes = [(digits[k],) if k in digits else view.axes[k] for k in range(len(term.index_sizes))]
    shape = (*view.shape[:dim], full, *view.shape[dim + 1 :])
    start = term.attributes[0]
    assert isinstance(start, int)
    return Windowed(start, relabel.compose(operand, axes, shape).scaled(view.coefficient))


def has_windows(views: Sequence[View]) -> bool:
    """Whether a view reads a window term: nothing else is looked at where none does."""
    return any(view.term.operation is WINDOW for view in views)


def is_single(view: View, dim: int) -> bool:
    """Whether the view is a window of one position, which may be taken to lie along any dimension of size one."""
    term = view.term
    return term.operation is WINDOW and view.shape[dim] == 1 and term.index_sizes[term.fresh[0]] == 1


def resized(view: View, dim: int, size: Size) -> View:
    """A view that does not use ``dim``, over another size of it."""
    return dataclasses.replace(view, shape=(*view.shape[:dim], size, *view.shape[dim + 1 :]))


def range_view(pool: TermPool, dim: int, shape: tuple[Size, ...], span: tuple[int, int]) -> View:
    """The indicator of ``start <= position < stop`` along ``dim``."""
    term = pool.intern(RANGE, span, (), (shape[dim],), 1, 0, (), (0,))
    return View(ONE, term, shape, (((dim, 1, shape[dim]),),))
