"""Values beside a mask: wherever the mask stands in one, it may be taken for one.

So ``m f(m x)`` is ``m f(x)``, through all that is computed for each of the mask's positions alone: an expert whose tokens
are masked before its layers computes for them what it does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir.algebra import CONTRACT, Opened, contract, open_view, reapply
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.rewrites.chosen import applied_anew

_MAX_DEPTH = 10


def with_one_for(pool: TermPool, mask: View, view: View) -> View:
    """``view`` with one in the place of ``mask``, down to a depth. Raises ValueError where that has no normal form."""
    return _Replacement(pool, mask).inside(view, _MAX_DEPTH)


def may_hold(pool: TermPool, mask: Term, term: Term, depth: int = _MAX_DEPTH) -> bool:
    """Whether a term is made of ``mask``, down to a depth: nothing else is looked through."""
    if term.id <= mask.id or depth == 0:
        return term is mask  # terms are numbered as they are made, operands first
    key = ("made of", mask.id, term.id)
    if key not in pool.answers:
        pool.answers[key] = any(may_hold(pool, mask, operand.term, depth - 1) for operand in term.operands)
    return pool.answers[key]


class _Replacement:
    """One mask, in the dimensions of the product beside it. What was found for a view is kept."""

    def __init__(self, pool: TermPool, mask: View) -> None:
        self._pool, self._mask = pool, mask
        self._found: dict[View, View] = {}

    def inside(self, view: View, depth: int) -> View:
        if view.term is self._mask.term and view.axes == self._mask.axes:
            return self._pool.constant(view.coefficient, view.shape)
        if not may_hold(self._pool, self._mask.term, view.term, depth):
            return view
        if view not in self._found:
            self._found[view] = self._opened(view, depth)
        return self._found[view]

    def _opened(self, view: View, depth: int) -> View:
        opened = open_view(view)
        operands = [self.inside(operand, depth - 1) for operand in opened.operands]
        if operands == list(opened.operands):
            return view
        return dataclasses.replace(_applied(self._pool, view, opened, operands).scaled(view.coefficient), shape=view.shape)


def _applied(pool: TermPool, view: View, opened: Opened, operands: Sequence[View]) -> View:
    """The operation of ``view`` on other operands, in normal form."""
    if view.term.operation is CONTRACT:
        labels = tuple(range(len(opened.shape)))
        inputs = tuple(labels for _ in operands)
        return contract(pool, operands, inputs, labels[: view.rank], frozenset(opened.summed))
    if view.term.fresh:
        return reapply(pool, view, opened, operands)
    return applied_anew(pool, view, operands, opened.shape, opened.summed, opened.cores)
