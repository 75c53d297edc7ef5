"""Values beside a mask: wherever the mask stands in one, it may be taken for one, and what it decides is decided.

So ``m f(m x)`` is ``m f(x)``, through all that is computed for each of the mask's positions alone: an expert whose
tokens are masked before its layers computes for them what it does without. And of distances that are at least zero
under a causal mask the limit at zero changes nothing. Where one of several masks holds, any of them does. Where an
index is a position, what is looked up by the index is what stands at the position. Scores that are a finite number
elsewhere are the scores beside the mask, and so are their exponentials.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, Opened, contract, has_infinity, open_view
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, MAXIMUM, POWER, WHERE
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT, less_equal, negate
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.scalar import ONE
from verifycompile.ir.sign import is_greater_than_zero
from verifycompile.ir.term import CONSTANT, INTEGER_LEAF, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.lemmas.build import build_product
from verifycompile.rewrites.lemmas.substitution import Substitution
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS, choose
from verifycompile.rewrites.operators.reduction import TRUTH_EXTREMES
from verifycompile.rewrites.parts.chosen import applied
from verifycompile.rewrites.side_conditions.index_arithmetic import implied, is_whole

_MAX_DEPTH = 10
_EXTREMES = (MAXIMUM, MINIMUM)


def with_one_for(pool: TermPool, mask: View, view: View) -> View:
    """``view`` with one in the place of ``mask``, down to a depth. Raises ValueError where that has no normal form."""
    replacement = _Replacement(pool, mask)
    chosen = replacement.chosen(view)
    return replacement.inside(view, _MAX_DEPTH) if chosen is None else chosen


def may_hold(pool: TermPool, mask: Term, term: Term, depth: int = _MAX_DEPTH) -> bool:
    """Whether a term is made of ``mask``, down to a depth: nothing else is looked through."""
    if term.id <= mask.id or depth == 0:
        return term is mask  # terms are numbered as they are made, operands first
    key = ("made of", mask.id, term.id, depth)
    if key not in pool.answers:
        pool.answers[key] = any(may_hold(pool, mask, operand.term, depth - 1) for operand in term.operands)
    return pool.answers[key]


def opposite_of(pool: TermPool, mask: View) -> View:
    """What is zero beside a mask; the mask itself where that is ``NOT`` of it, in which it stands."""
    return negate(pool, mask) if mask.term.operation in (AT_MOST, LESS, LESS_EQUAL, NOT) else mask


def may_decide(mask: Term, term: Term) -> bool:
    """Whether a mask that compares numbers may decide which of two numbers in a value is the larger one."""
    return mask.operation is AT_MOST and _HAS_EXTREME(term)


def may_look_up(pool: TermPool, mask: Term, term: Term, depth: int = _MAX_DEPTH) -> bool:
    """Whether a mask compares an index with positions, and a value is computed of what the index looks up."""
    compared = (mask.operands, mask.operands[::-1]) if mask.operation is EQUAL else ()
    return any(
        view.term.operation is IOTA and is_given(index.term) and _may_read(pool, index.term, term, depth)
        for index, view in compared
    )


def is_given(index: Term) -> bool:
    """Whether an index is an input, or is counted or computed of one.

    What a router chooses stays a mask of all experts, of which each rank has some.
    """
    return index.operation in (INTEGER_LEAF, COMBINE, IOTA)


def positions_compared(view: View) -> Iterator[tuple[View, View]]:
    """``(x, v)`` where the view is ``x == v`` and v a position, which digits of several dimensions may spell."""
    if view.term.operation is not EQUAL or view.coefficient != 1:
        return
    operands = open_view(view).operands
    for index, counter in (operands, operands[::-1]):
        if counter.term.operation is IOTA and counter.coefficient == 1:
            yield index, counter


def looked_up_by(view: View, index: View, positions: Term, bound: Sequence[int]) -> tuple[int, ...]:
    """The dimensions among ``bound`` that spell the position which the view compares with the index, if it does."""
    for other, counter in positions_compared(view):
        dims = tuple(digit[0] for digit in counter.axes[0])
        if other != index or counter.term is not positions or not set(dims) <= set(bound):
            continue
        if counter.axes[0] == tuple((dim, 1, view.shape[dim]) for dim in dims) and not any(map(index.uses, dims)):
            return dims
    return ()


def _may_read(pool: TermPool, index: Term, term: Term, depth: int) -> bool:
    if term.id <= index.id or depth == 0 or term.fresh:
        return False
    key = ("looked up by", index.id, term.id, depth)
    if key not in pool.answers:
        found = term.operation is CONTRACT and any(_is_summed_look_up(term, view, index) for view in term.operands)
        pool.answers[key] = found or any(_may_read(pool, index, operand.term, depth - 1) for operand in term.operands)
    return pool.answers[key]


def _is_summed_look_up(term: Term, view: View, index: Term) -> bool:
    """Whether a factor of a sum compares an index with a position over which the sum is."""
    compared = (view.term.operands, view.term.operands[::-1]) if view.term.operation is EQUAL else ()
    for own, counter in compared:
        if own.term is index and counter.term.operation is IOTA:
            places = {digit[0] for inner in counter.axes[0] for digit in view.axes[inner[0]]}
            if places <= set(term.summed_indices):
                return True
    return False


def is_elementwise(term: Term) -> bool:
    return len(term.index_sizes) == term.free and not term.fresh and bool(term.operands)


def _is_counted(term: Term) -> bool:
    """Whether a term is a whole number that is computed of places and of numbers."""
    return is_whole(term) or (term.operation is COMBINE and all(is_whole(operand.term) for operand in term.operands))


def _has_extreme(term: Term) -> bool:
    if term.operation in _EXTREMES:
        return all(_is_counted(operand.term) for operand in term.operands)
    return is_elementwise(term) and any(_HAS_EXTREME(operand.term) for operand in term.operands)


_HAS_EXTREME = TermProperty(is_elementwise, _has_extreme)


def _has_truths(term: Term) -> bool:
    return term.operation is TRUTH_EXTREMES["max"] or any(_HAS_TRUTHS(operand.term) for operand in term.operands)


_HAS_TRUTHS = TermProperty(lambda _: True, _has_truths)


_UNDEFINED_SOMEWHERE = frozenset(FUNCTIONS[name] for name in ("acos", "asin", "lgamma", "log1p"))
"""Functions that have no finite value for some numbers, which no sign tells apart from the others."""


def _is_defined(term: Term, argument: View) -> bool:
    """Whether the function of a term is known to have a finite value for every element of an argument."""
    if term.operation in (POWER, LOGARITHM):
        return is_greater_than_zero(argument)
    return term.operation not in _UNDEFINED_SOMEWHERE


def _is_defined_within(term: Term) -> bool:
    return all(
        not has_infinity(argument) and _is_defined(term, argument) and _IS_DEFINED(argument.term)
        for argument in term.operands
    )


_IS_DEFINED = TermProperty(lambda _: True, _is_defined_within)
"""Whether no function of which a term is computed may have no value."""


class _Replacement:
    """One mask, in the dimensions of the product beside it. What was found for a view is kept."""

    def __init__(self, pool: TermPool, mask: View) -> None:
        self._pool, self._mask = pool, mask
        self._dimensions = {digit[0] for axis in mask.axes for digit in axis if digit[0] != CONSTANT}
        compared = [(x, place) for x, place in positions_compared(mask) if x.coefficient == 1 and not is_given(x.term)]
        self._positions = {(index.term, index.axes): place for index, place in compared}
        """What is given stays, and is what stands for its position instead (``may_look_up``)."""
        self._found: dict[View, View] = {}

    def inside(self, view: View, depth: int) -> View:
        if view.term is self._mask.term and view.axes == self._mask.axes:
            return self._pool.constant(view.coefficient, view.shape)
        if (place := self._positions.get((view.term, view.axes))) is not None:
            return dataclasses.replace(place.scaled(view.coefficient), shape=view.shape)
        if depth == 0 or not (
            self._may_hold(view, depth)
            or (is_elementwise(view.term) and self._may_hold_index(view.term, depth))
            or may_decide(self._mask.term, view.term)
            or may_look_up(self._pool, self._mask.term, view.term, depth)
        ):
            return view
        if view not in self._found:
            self._found[view] = self._opened(view, depth)
        return self._found[view]

    def chosen(self, view: View) -> View | None:
        """A choice between a value and a number, or the exponential of one, by the mask; None for what is none.

        At the top alone: where the mask is zero both are finite, which no function of them need be. A value that may
        be infinite or no number stays behind its condition.
        """
        if view.term.operation is EXPONENTIAL:
            inner = self.chosen(open_view(view).operands[0])
            return None if inner is None else Builder(self._pool).exp(inner).scaled(view.coefficient)
        if view.term.operation is not WHERE or not _IS_DEFINED(view.term):
            return None
        condition, *branches = open_view(view).operands
        opposite = opposite_of(self._pool, self._mask)
        is_opposite = (condition.term, condition.axes) == (opposite.term, opposite.axes) and opposite != self._mask
        known = self._pool.zero(condition.shape) if is_opposite else self.inside(condition, _MAX_DEPTH)
        if known.term is not self._pool.unit or self._pool.unit not in [branch.term for branch in branches]:
            return None  # the condition is not decided, or no branch is a number
        return choose(Builder(self._pool), known, *branches).scaled(view.coefficient)

    def _may_hold_index(self, term: Term, depth: int) -> bool:
        return any(may_hold(self._pool, index, term, depth) for index, _ in self._positions)

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
        if view.term.operation is CONTRACT and (found := self._at_place(view, opened)) is not None:
            return self.inside(found, depth - 1)
        if view.term.operation in _EXTREMES:
            chosen = self._chosen(view.term.operation is MAXIMUM, *opened.operands)
            if chosen is not None:
                return self.inside(chosen.scaled(view.coefficient), depth - 1)
        operands = [self.inside(operand, depth - 1) for operand in opened.operands]
        if operands == list(opened.operands):
            return view
        if not all(_is_defined(view.term, argument) for argument in (*opened.operands, *operands)):
            return view  # times zero, where the mask is, what is no number is none
        return applied(self._pool, view, opened, operands)

    def _at_place(self, view: View, opened: Opened) -> View | None:
        """What a sum looks up by the mask's index, at the position of the mask; None where it looks up nothing."""
        for index, place in positions_compared(View(ONE, self._mask.term, opened.shape, self._mask.axes)):
            for lookup in opened.operands:
                dims = looked_up_by(lookup, index, place.term, opened.summed)
                if dims:
                    rest = tuple(factor for factor in opened.operands if factor is not lookup)
                    given = Substitution({"a": rest, "n": (place,)}, indices={"j": dims})
                    found = build_product(self._pool, ("at", "a", "j", "n"), opened.shape, given)
                    labels = tuple(range(len(opened.shape)))
                    bound = frozenset(opened.summed) - set(dims)
                    result = contract(self._pool, found, [labels for _ in found], labels[: view.rank], bound)
                    return dataclasses.replace(result.scaled(view.coefficient), shape=view.shape)
        return None

    def _is_among(self, opened: Opened) -> bool:
        """Whether the mask is one of the truths of which any is to hold: it has them at some places of its own."""
        (truths,) = opened.operands
        if truths.term is not self._mask.term:
            return False
        places: dict[int, int] = {}
        for axis, own in zip(truths.axes, self._mask.axes, strict=True):
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
