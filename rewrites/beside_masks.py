"""Values beside a mask: wherever the mask stands in one, it may be taken for one, and what it decides is decided.

So ``m f(m x)`` is ``m f(x)``, through all that is computed for each of the mask's positions alone: an expert whose
tokens are masked before its layers computes for them what it does without. And of distances that are at least zero
under a causal mask the limit at zero changes nothing. Where one of several masks holds, any of them does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, Opened, contract, open_view, reapply
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.indicator import less_equal
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.term import CONSTANT, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.rewrites.chosen import applied_anew
from verifycompile.rewrites.index_arithmetic import implied, is_whole
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.reduction import TRUTH_EXTREMES

_MAX_DEPTH = 10
_EXTREMES = (MAXIMUM, MINIMUM)


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


def may_decide(mask: Term, term: Term) -> bool:
    """Whether a mask that compares numbers may decide which of two numbers in a value is the larger one."""
    return mask.operation is AT_MOST and _HAS_EXTREME(term)


def _is_elementwise(term: Term) -> bool:
    return len(term.index_sizes) == term.free and not term.fresh


def _is_counted(term: Term) -> bool:
    """Whether a term is a whole number that is computed of places and of numbers."""
    return is_whole(term) or (term.operation is COMBINE and all(is_whole(operand.term) for operand in term.operands))


def _has_extreme(term: Term) -> bool:
    if term.operation in _EXTREMES:
        return all(_is_counted(operand.term) for operand in term.operands)
    return _is_elementwise(term) and any(_HAS_EXTREME(operand.term) for operand in term.operands)


_HAS_EXTREME = TermProperty(_is_elementwise, _has_extreme)


def _has_truths(term: Term) -> bool:
    return term.operation is TRUTH_EXTREMES["max"] or any(_HAS_TRUTHS(operand.term) for operand in term.operands)


_HAS_TRUTHS = TermProperty(lambda _: True, _has_truths)


class _Replacement:
    """One mask, in the dimensions of the product beside it. What was found for a view is kept."""

    def __init__(self, pool: TermPool, mask: View) -> None:
        self._pool, self._mask = pool, mask
        self._dimensions = {digit[0] for axis in mask.axes for digit in axis if digit[0] != CONSTANT}
        self._found: dict[View, View] = {}

    def inside(self, view: View, depth: int) -> View:
        if view.term is self._mask.term and view.axes == self._mask.axes:
            return self._pool.constant(view.coefficient, view.shape)
        if depth == 0 or not (self._may_hold(view, depth) or may_decide(self._mask.term, view.term)):
            return view
        if view not in self._found:
            self._found[view] = self._opened(view, depth)
        return self._found[view]

    def _may_hold(self, view: View, depth: int) -> bool:
        """Whether the mask may stand in a view at its own places: one that is the same at all places of a dimension
        of the mask holds nothing that is not, such as a residual stream into which earlier layers added theirs.
        """
        if not all(map(view.uses, self._dimensions)) and not _HAS_TRUTHS(view.term):
            return False
        return may_hold(self._pool, self._mask.term, view.term, depth)

    def _opened(self, view: View, depth: int) -> View:
        opened = open_view(view)
        if view.term.operation is TRUTH_EXTREMES["max"] and self._is_among(opened):
            return self._pool.constant(view.coefficient, view.shape)
        if view.term.operation in _EXTREMES:
            chosen = self._chosen(view.term.operation is MAXIMUM, *opened.operands)
            if chosen is not None:
                return self.inside(chosen.scaled(view.coefficient), depth - 1)
        operands = [self.inside(operand, depth - 1) for operand in opened.operands]
        if operands == list(opened.operands):
            return view
        result = _applied(self._pool, view, opened, operands)
        return dataclasses.replace(result.scaled(view.coefficient), shape=view.shape)

    def _is_among(self, opened: Opened) -> bool:
        """Whether the mask is one of the truths of which any is to hold: it has them at some places of its own."""
        (truths,) = opened.operands
        if truths.term is not self._mask.term or len(truths.axes) != len(self._mask.axes):
            return False
        places: dict[int, int] = {}
        for axis, own in zip(truths.axes, self._mask.axes, strict=True):
            if len(axis) != len(own):
                return False
            for digit, other in zip(axis, own, strict=True):
                is_bound = digit[0] in opened.summed
                place = places.setdefault(digit[0], other[0]) if is_bound else digit[0]
                if (is_bound and place == CONSTANT) or (place, *digit[1:]) != other:
                    return False
        return True

    def _chosen(self, largest: bool, left: View, right: View) -> View | None:
        """The larger or the smaller one of two whole numbers, where the mask says which one that is."""
        mask = View(self._mask.coefficient, self._mask.term, left.shape, self._mask.axes)
        for one, other in ((left, right), (right, left)):
            low, high = (other, one) if largest else (one, other)
            if implied([mask], [less_equal(self._pool, low, high)], left.shape):
                return one
        return None


def _applied(pool: TermPool, view: View, opened: Opened, operands: Sequence[View]) -> View:
    """The operation of ``view`` on other operands, in normal form."""
    if view.term.operation is CONTRACT:
        labels = tuple(range(len(opened.shape)))
        inputs = tuple(labels for _ in operands)
        return contract(pool, operands, inputs, labels[: view.rank], frozenset(opened.summed))
    if view.term.fresh:
        return reapply(pool, view, opened, operands)
    return applied_anew(pool, view, operands, opened.shape, opened.summed, opened.cores)
