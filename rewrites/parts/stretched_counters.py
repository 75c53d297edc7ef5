"""Values that read a dimension through counters alone, such as a mask of positions or the angles of a rotation.

``f(i + 2)`` for four positions ``i`` is a part of ``f(i)`` for all of them. So such a value may have as many positions
as are wanted, from any place on, and two of them that follow each other are one.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, Opened, combine, iota, open_view
from verifycompile.ir.exponential import EXPONENTIAL
from verifycompile.ir.indicator import EQUAL, NOT
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.size import Size, normalize_size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.parts.chosen import applied

_OF_COUNTERS = frozenset({AT_MOST, EQUAL, NOT, COMBINE, CONTRACT, EXPONENTIAL, FUNCTIONS["cos"], FUNCTIONS["sin"]})
"""What is a finite number at every whole number, those before the first position and behind the last one included."""
_DEPTH = 8
"""Of a value; one that is deeper is taken for no value of counters."""


def is_of_counters(view: View, dim: int) -> bool:
    """Whether a view reads ``dim``, and does so through counters that count all of it."""
    return view.uses(dim) and _is_of_counters(view, dim, _DEPTH)


def _is_of_counters(view: View, dim: int, depth: int) -> bool:
    if not view.uses(dim):
        return True
    if view.term.operation is IOTA:
        return view.axes[0] == ((dim, 1, view.shape[dim]),)
    term = view.term
    if not depth or term.operation not in _OF_COUNTERS or len(term.index_sizes) != term.free:
        return False
    return all(_is_of_counters(operand, dim, depth - 1) for operand in open_view(view).operands)


def stretched_counters(pool: TermPool, view: View, dim: int, start: int, length: Size) -> View:
    """The view with ``length`` positions along ``dim``, of which the first is position ``start`` of those there are."""
    shape = (*view.shape[:dim], length, *view.shape[dim + 1 :])
    if not view.uses(dim):
        return dataclasses.replace(view, shape=shape)
    if view.term.operation is IOTA:
        counter = iota(pool, length)
        moved = dataclasses.replace(counter, shape=shape, axes=tuple(((dim, 1, length),) for _ in counter.axes))
        return combine(pool, [moved, pool.constant(Fraction(start), shape)]).scaled(view.coefficient)
    operands = [stretched_counters(pool, operand, dim, start, length) for operand in open_view(view).operands]
    return applied(pool, view, Opened((), shape, (), ()), operands)


def joined_counters(pool: TermPool, left: View, right: View, dim: int, sizes: tuple[Size, Size]) -> View | None:
    """Two neighbouring pieces as one where the second goes on as the first one counts; else None."""
    first, second = sizes
    if not isinstance(first, int) or not is_of_counters(left, dim):
        return None
    if stretched_counters(pool, left, dim, first, second) != right:
        return None
    pool.lemma_trace.append(("counters-go-on", ""))
    return stretched_counters(pool, left, dim, 0, normalize_size(first + second))
