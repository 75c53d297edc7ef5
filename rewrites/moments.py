"""Lemma on sums about a mean: what does not depend on the summed index leaves a combination that does.

With it a variance is one term, written as mean of squares less squared mean, about the mean, or from parts with means
of their own; so is the gradient of a norm.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.algebra import COMBINE, combine, has_infinity, multiply_views, open_view
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.matching import matching_lemma


@matching_lemma("VL44", "sum-about-a-constant")
def split_constant_part(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The sum over i of ``f[i] (a[i] + b)`` is the sum of ``f[i] a[i]`` plus b times the sum of f."""
    for total in factors:
        if total.term.operation is not COMBINE:
            continue
        parts = [part.scaled(total.coefficient) for part in open_view(total).operands]
        for index in range(free, total.rank):
            varying = [part for part in parts if part.uses(index)]
            constant = [part for part in parts if not part.uses(index)]
            if not varying or not constant or any(has_infinity(part) for part in parts):
                continue
            pool.lemma_trace.append(("sum-about-a-constant", repr(total.term)))
            others = [f for f in factors if f is not total]
            groups = (combine(pool, varying), combine(pool, constant))
            return [combine(pool, [multiply_views(pool, *others, group) for group in groups])]
    return None
