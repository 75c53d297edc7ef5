"""Values at a chosen position: it reaches the operands of what is computed element by element.

``(q * c)[0]`` is ``q[0] * c[0]``, so that a program that computes on a piece has the value that another computes on
the whole and cuts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import Opened, combine, open_view, reapply
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, POWER
from verifycompile.ir.indicator import EQUAL, NOT, equal, is_indicator, negate
from verifycompile.ir.inequality import AT_MOST, whole_at_most
from verifycompile.ir.pieces import CONCATENATE, opened_stack, pieces_of
from verifycompile.ir.relabel import narrow, remove_dim, substitute
from verifycompile.ir.term import CONSTANT, Digit, Term, TermPool, View
from verifycompile.ir.window import WINDOW, window_at
from verifycompile.rewrites.builder import Builder


def at_position(pool: TermPool, view: View) -> View:
    """The view, with the positions that are chosen in it chosen in its operands."""
    view = _within_part(opened_stack(view))
    term = view.term
    chosen = any(digit[0] == CONSTANT for axis in view.axes for digit in axis)
    if term.operation is WINDOW:
        return _in_window(pool, view) or view
    if not chosen or not term.operands or term.fresh or len(term.index_sizes) != term.free:
        return view
    key = ("at position", view)
    known = pool.memo.get(key)
    if known is None:
        opened = open_view(view)
        known = applied(pool, view, opened, [at_position(pool, operand) for operand in opened.operands])
        pool.lemma_trace.append(("slice-of-operands", repr(term)))
        pool.memo[key] = known
    return known


def _within_part(view: View) -> View:
    """An element of a concatenation as one of a piece, an element of a window as one of what it is a window of."""
    while view.term.operation in (CONCATENATE, WINDOW):
        (fresh,) = view.term.fresh
        digits, dim = view.axes[fresh], view.rank
        if len(digits) != 1 or digits[0][0] != CONSTANT:
            break
        position = int(digits[0][1])
        wide = _with_dimension_for(view, fresh)
        window = window_at(wide, dim)
        start, parts = (0, pieces_of(wide, dim)) if window is None else (window.start, [window.source])
        first = start + position
        while (length := int(parts[0].shape[dim])) <= first:
            first -= length
            parts = parts[1:]
        view = opened_stack(remove_dim(narrow(parts[0], dim, first, 1), dim))
    return view


def _with_dimension_for(view: View, index: int) -> View:
    """The view with a dimension of its own for an index of its term, behind all others."""
    size = view.term.index_sizes[index]
    axes = (*view.axes[:index], ((view.rank, 1, size),), *view.axes[index + 1 :])
    return View(view.coefficient, view.term, (*view.shape, size), axes)


def _in_window(pool: TermPool, view: View) -> View | None:
    """A window in which positions of other dimensions are chosen: that of what it is a window of, at the positions."""
    (fresh,) = view.term.fresh
    dim, size = view.rank, view.term.index_sizes[fresh]
    found = window_at(_with_dimension_for(view, fresh), dim)
    assert found is not None
    assert isinstance(size, int)
    source = at_position(pool, found.source)
    if source == found.source or pool.piecewise is None:
        return None
    moved = pool.piecewise.narrowed(pool, source, dim, found.start, size)
    digits: dict[int, Sequence[Digit]] = {d: [(d, 1, length)] for d, length in enumerate(view.shape)}
    return substitute(moved, {**digits, dim: view.axes[fresh]}, view.shape)


def like(pool: TermPool, view: View, *operands: View) -> View:
    """The function of its operands that ``view`` is, element by element, of other values."""
    term = view.term
    if len(operands) != len(term.operands) or term.fresh or len(term.index_sizes) != term.free:
        raise ValueError("no function of so many values, element by element")
    return applied(pool, view, open_view(view), operands)


def applied(pool: TermPool, view: View, opened: Opened, operands: Sequence[View]) -> View:
    """``view`` with other operands over the indices of ``opened``, in normal form."""
    result = _built(pool, view.term, operands)
    if result is None:
        result = reapply(pool, view, opened, operands)
    return dataclasses.replace(result, shape=opened.shape[: view.rank]).scaled(view.coefficient)


def _built(pool: TermPool, term: Term, operands: Sequence[View]) -> View | None:
    """An operation that has a builder of its own."""
    operation = term.operation
    if operation is AT_MOST:
        left, right = operands
        offset = pool.constant(Fraction(int(term.attributes[0])), right.shape)  # type: ignore[call-overload]  # a whole number
        return whole_at_most(pool, left, combine(pool, [right, offset]))
    if operation is EQUAL:
        return equal(pool, *operands)
    if operation is NOT and is_indicator(operands[0]):
        return negate(pool, operands[0])
    builder = Builder(pool)
    if operation is EXPONENTIAL:
        return builder.exp(operands[0])
    if operation is LOGARITHM:
        return builder.log(operands[0])
    if operation is POWER:
        return builder.power(operands[0], term.attributes[0])  # type: ignore[arg-type]  # a scalar by construction
    return None
