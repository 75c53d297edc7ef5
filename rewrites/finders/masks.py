"""Masks that were applied need not be applied again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, open_view
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, factors_without
from verifycompile.rewrites.lemmas.indicators import MASK_OF_MASKED, MASK_ONCE
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution


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


def _masked_summands(pool: TermPool, total: View, mask: View) -> tuple[Factors, ...] | None:
    """What ``mask`` multiplies in each summand; None where one does not have it."""
    found: list[Factors] = []
    for part in open_view(total).operands:
        rest = factors_without(pool, part, mask)
        if rest is None:
            return None
        found.append(rest)
    return tuple(found)


equal_masks = ProductFinder(_equal_masks)
masks_of_masked = ProductFinder(_masks_of_masked)
