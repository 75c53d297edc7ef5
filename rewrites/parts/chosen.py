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
from verifycompile.ir.pieces import opened_stack
from verifycompile.ir.term import CONSTANT, Term, TermPool, View
from verifycompile.rewrites.builder import Builder


def at_position(pool: TermPool, view: View) -> View:
    """The view, with the positions that are chosen in it chosen in its operands."""
    view = opened_stack(view)
    term = view.term
    chosen = any(digit[0] == CONSTANT for axis in view.axes for digit in axis)
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
