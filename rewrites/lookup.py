"""Lemmas on lookups in computed tables: a lookup distributes over a sum, and finds itself under its own indicator.

With them the logit of the target, picked before or after the shift by the maximum or by the log-sum-exp, is one
term. They hold for every value of the index: no fact about it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, has_infinity, multiply_views, open_view, sum_over
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.relabel import UnalignedError, substitute
from verifycompile.ir.size import Size
from verifycompile.ir.term import Digit, TermPool, View
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.one_hot import implied, integer_leaves, merge_indicators, whole_dim


def lookup_parts(view: View, shape: tuple[Size, ...]) -> tuple[View, int] | None:
    """``(x, dim)`` where the view is the indicator ``x == position in dim`` and x does not depend on ``dim``."""
    if view.term.operation is not EQUAL or view.coefficient != 1:
        return None
    operands = open_view(view).operands
    for index, counter in (operands, operands[::-1]):
        dim = whole_dim(counter, shape)
        if dim is not None and not index.uses(dim):
            return index, dim
    return None


@matching_lemma("VL41", "merge-equal-masks")
def merge_equal_masks(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The product of an indicator with itself is the indicator."""
    kept: list[View] = []
    for factor in factors:
        if not (factor.term.operation.indicator and factor in kept):
            kept.append(factor)
    if len(kept) == len(factors):
        return None
    pool.lemma_trace.append(("merge-equal-masks", ""))
    return kept


@matching_lemma("VL28", "distribute-lookup")
def distribute_lookup(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The sum over v of ``(x == v) (a[v] + b)`` is that of ``(x == v) a[v]`` plus that of ``(x == v) b``."""
    shape = factors[0].shape
    looked_up = {found[1] for f in factors if (found := lookup_parts(f, shape)) is not None and found[1] >= free}
    for total in factors:
        if total.term.operation is not COMBINE or not any(total.uses(dim) for dim in looked_up):
            continue
        parts = open_view(total).operands
        if any(has_infinity(part) for part in parts):
            continue
        pool.lemma_trace.append(("distribute-lookup", repr(total.term)))
        others = [f for f in factors if f is not total]
        return [combine(pool, [multiply_views(pool, *others, part).scaled(total.coefficient) for part in parts])]
    return None


@matching_lemma("VL29", "lookup-under-its-indicator")
def lookup_under_its_indicator(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``(x == v)`` times the sum over w of ``(x == w) a[w]`` is ``(x == v) a[v]``."""
    for indicator in factors:
        for index, position in _positions(indicator):
            for factor in factors:
                if factor is indicator:
                    continue
                replaced = _at_position(factor, index, position)
                if replaced is not None:
                    pool.lemma_trace.append(("lookup-under-its-indicator", repr(factor.term)))
                    return [*(f for f in factors if f is not factor), *replaced]
    return None


def _positions(view: View) -> Iterator[tuple[View, View]]:
    """``(x, v)`` where the view is ``x == v`` and v a position, which digits of several dimensions may spell."""
    if view.term.operation is not EQUAL or view.coefficient != 1:
        return
    operands = open_view(view).operands
    for index, counter in (operands, operands[::-1]):
        if counter.term.operation is IOTA and counter.coefficient == 1:
            yield index, counter


def _at_position(view: View, index: View, position: View) -> Sequence[View] | None:
    """The factors of a sum over w of ``(index == w) a[w]`` but its indicator, at w = the position."""
    if view.term.operation is not CONTRACT or view.term.summed != 1:
        return None
    opened = open_view(view)
    (bound,) = opened.summed
    if position.term.index_sizes[0] != opened.shape[bound]:
        return None
    wide = View(index.coefficient, index.term, opened.shape, index.axes)
    for lookup in opened.operands:
        if lookup_parts(lookup, opened.shape) != (wide, bound):
            continue
        rest = [v for v in opened.operands if v is not lookup]
        place: dict[int, Sequence[Digit]] = {d: [(d, 1, s)] for d, s in enumerate(view.shape)}
        place[bound] = position.axes[0]
        try:
            return [substitute(v, place, view.shape) for v in rest]
        except UnalignedError:
            return None
    return None


@matching_lemma("VL40", "masks-join-lookup")
def masks_join_lookup(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``mask`` times a sum of a lookup is the sum of the one lookup that both are, as z3 proves; or the sum alone."""
    masks = [f for f in factors if f.term.operation.indicator]
    subjects = {leaf.term for mask in masks for leaf in integer_leaves(mask)}
    for total in factors if masks else ():
        if total.term.operation is not CONTRACT or not total.term.summed:
            continue
        opened = open_view(total)
        inner = [v for v in opened.operands if v.term.operation.indicator]
        if not any(leaf.term in subjects for v in inner for leaf in integer_leaves(v)):
            continue
        wide = [View(f.coefficient, f.term, opened.shape, f.axes) for f in masks]
        joined = merge_indicators(pool, [*wide, *inner]) or _without_implied(wide, inner, opened.shape)
        if joined is None:
            continue
        pool.lemma_trace.append(("masks-join-lookup", repr(total.term)))
        rest = [v for v in opened.operands if v not in inner]
        sums = sum_over(pool, multiply_views(pool, *joined, *rest), opened.summed)
        return [sums, *(f for f in factors if f is not total and f not in masks)]
    return None


def _without_implied(masks: Sequence[View], inner: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """All indicators but one of the masks, which the inner ones imply."""
    for mask in masks:
        if implied(mask, inner, shape):
            return [*(m for m in masks if m is not mask), *inner]
    return None
