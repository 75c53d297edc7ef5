"""Lemma on sums about a mean: what does not depend on the summed index leaves a combination that does.

With it a variance is one term, written as mean of squares less squared mean, about the mean, or from parts with means
of their own; so is the gradient of a norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from verifycompile.ir.algebra import COMBINE, combine, has_infinity, multiply_views, open_view
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.matching import matching_lemma

_MAX_SUMS = 2
"""A product of more sums that could be split is left as it is: a mean square has no more, and of ``y = y * y + w``,
repeated, all monomials would be written out.
"""


@matching_lemma("VL44", "sum-about-a-constant")
def split_constant_part(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The sum over i of ``f[i] (a[i] + b)`` is the sum of ``f[i] a[i]`` plus b times the sum of f."""
    sums = [factor for factor in factors if factor.term.operation is COMBINE]
    splits = [(total, split) for total in sums if (split := _split(total, range(free, total.rank))) is not None]
    if not splits or len(splits) > _MAX_SUMS:
        return None
    total, groups = splits[0]
    pool.lemma_trace.append(("sum-about-a-constant", repr(total.term)))
    others = [f for f in factors if f is not total]
    return [combine(pool, [multiply_views(pool, *others, combine(pool, group)) for group in groups])]


def _split(total: View, bound: Iterable[int]) -> tuple[list[View], list[View]] | None:
    """The summands that depend on one of the indices ``bound``, and those that do not; None where either has none."""
    parts = [part.scaled(total.coefficient) for part in open_view(total).operands]
    if any(has_infinity(part) for part in parts):
        return None
    for index in bound:
        varying = [part for part in parts if part.uses(index)]
        if varying and len(varying) < len(parts):
            return varying, [part for part in parts if not part.uses(index)]
    return None
