"""Masks that were applied need not be applied again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, open_view
from verifycompile.ir.indicator import negate
from verifycompile.ir.inequality import AT_MOST, whole_at_most
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, SumFinder, factors_without, whole_view
from verifycompile.rewrites.lemmas.indicators import BESIDE_MASK, MASK_OF_MASKED, MASK_ONCE, SAME_TRUTH
from verifycompile.rewrites.lemmas.products import OPEN_SUM
from verifycompile.rewrites.lemmas.ranges import MASKS_THAT_EXCLUDE
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution
from verifycompile.rewrites.parts.beside_masks import may_decide, may_hold, may_look_up, opposite_of, with_one_for
from verifycompile.rewrites.registry import UnsupportedError


def _equal_masks(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask that is there twice."""
    masks = [factor for factor in factors if factor.term.operation.indicator]
    for one, other in itertools.combinations(masks, 2):
        if (one.term, one.axes) == (other.term, other.axes):
            yield Proposal(MASK_ONCE, Substitution({"m": (one,)}), (one, other))


def _masks_of_masked(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask of a sum each of whose summands has it."""
    sums = [factor for factor in factors if factor.term.operation is COMBINE]
    for mask in factors if sums else ():
        for total in sums if mask.term.operation.indicator else ():
            masked = _masked_summands(pool, total, mask)
            if masked is not None:
                yield Proposal(MASK_OF_MASKED, Substitution({"m": (mask,)}, each={"a": masked}), (mask, total))


def _beside_masks(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """A mask of what is computed under the mask as well."""
    for mask in factors:
        if not mask.term.operation.indicator:
            continue
        masks = (mask.term, opposite_of(pool, mask).term)
        for value in factors:
            looks_up = may_look_up(pool, mask.term, value.term)
            if value is mask or (looks_up and any(mask.uses(dim) for dim in range(free, mask.rank))):
                continue  # what is looked up is a function of it, where the position is summed
            is_held = looks_up or any(may_hold(pool, term, value.term) for term in masks)
            if not (is_held or may_decide(mask.term, value.term)):
                continue
            try:
                plain = with_one_for(pool, mask, value)
            except (ValueError, UnsupportedError):  # no layout, or no real number under the mask
                continue
            if plain != value:
                given = Substitution({"m": (mask,), "a": (value,), "b": (plain,)})
                yield Proposal(BESIDE_MASK, given, (mask, value))


def _masked_summands(pool: TermPool, total: View, mask: View) -> tuple[Factors, ...] | None:
    """What ``mask`` multiplies in each summand; None where one does not have it."""
    found: list[Factors] = []
    for part in open_view(total).operands:
        rest = factors_without(pool, part, mask)
        if rest is None:
            return None
        found.append(rest)
    return tuple(found)


def _decided_masks(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Inequalities that a chosen position decides, also in a sum of which an element is taken: the last running sum."""
    for mask in factors:
        if _holds_everywhere(pool, mask):
            yield Proposal(SAME_TRUTH, Substitution({"m": (mask,), "n": ()}), (mask,))
    for total in factors:
        if total.term.operation is CONTRACT and total.term.summed and _has_fixed_digit(total):
            opened = open_view(total)
            if any(_holds_everywhere(pool, mask) for mask in opened.operands):
                values = {"f": tuple(f for f in factors if f is not total), "a": opened.operands}
                indices = {"j": tuple(range(free, factors[0].rank)), "l": opened.summed}
                yield Proposal(OPEN_SUM, Substitution(values, indices=indices), factors)


def _holds_everywhere(pool: TermPool, view: View) -> bool:
    if view.term.operation is not AT_MOST or not _has_fixed_digit(view):
        return False
    left, right = open_view(view).operands
    offset = pool.constant(Fraction(int(view.term.attributes[0])), view.shape)  # type: ignore[call-overload]  # a whole number
    found = whole_at_most(pool, left, combine(pool, [right, offset]))
    return found == pool.constant(ONE, view.shape)


def _has_fixed_digit(view: View) -> bool:
    return any(digit[0] == CONSTANT for axis in view.axes for digit in axis)


def _masks_and_rests(pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Iterator[Proposal]:
    """A value under a mask, and the same value where the mask is zero."""
    groups: dict[object, list[tuple[View, View, Factors]]] = {}
    for summand in summands:
        term = summand.term
        if term.operation is not CONTRACT or term.summed or not any(v.term.operation.indicator for v in term.operands):
            continue
        opened = open_view(whole_view(summand, shape)).operands
        for mask in opened:
            if mask.term.operation.indicator:
                rest = tuple(factor for factor in opened if factor is not mask)
                key = summand.coefficient, frozenset(Counter((v.term, v.axes) for v in rest).items())
                groups.setdefault(key, []).append((summand, mask, rest))
    for group in groups.values():
        for (one, mask, rest), (other, negated, _) in itertools.combinations(group, 2):
            if one is not other and negate(pool, mask) == negated:
                scaled = rest if one.coefficient == 1 else (*rest, pool.constant(one.coefficient, shape))
                given = {"m": (mask,), "n": (negated,), "c": (), "a": scaled}
                yield Proposal(MASKS_THAT_EXCLUDE, Substitution(given, indices={"l": ()}), (one, other))


equal_masks = ProductFinder(_equal_masks, among_masks=True)
masks_and_rests = SumFinder(_masks_and_rests)
decided_masks = ProductFinder(_decided_masks)
beside_masks = ProductFinder(_beside_masks, among_masks=True)
masks_of_masked = ProductFinder(_masks_of_masked, among_masks=True)
