"""Lemmas on masks: an indicator is its own square, so that a mask that was applied need not be applied again."""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.term import Axis, Term, TermPool, View
from verifycompile.rewrites.matching import matching_lemma


@matching_lemma("VL70", "apply-mask-once")
def apply_mask_once(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``m * m`` is ``m``, and ``m (m a + m b)`` is ``m a + m b``, for a factor m whose elements are 0 or 1."""
    for position, mask in enumerate(factors):
        if not mask.term.operation.indicator:
            continue
        others = [f for k, f in enumerate(factors) if k != position]
        if any(_is_masked(other, mask) for other in others):
            pool.lemma_trace.append(("apply-mask-once", repr(mask.term)))
            return others
    return None


def _is_masked(view: View, mask: View) -> bool:
    """Whether every summand of ``view`` has the factor ``mask``."""
    if view.term.operation is COMBINE:
        return all(_key(mask) in _factors(part) for part in open_view(view).operands)
    return _key(view) == _key(mask)


def _factors(view: View) -> set[tuple[Term, tuple[Axis, ...]]]:
    """The factors of a product that depend on no summed index."""
    if view.term.operation is not CONTRACT:
        return {_key(view)}
    return {_key(f) for f in open_view(view).operands}


def _key(view: View) -> tuple[Term, tuple[Axis, ...]]:
    return view.term, view.axes
