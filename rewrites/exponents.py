"""Lemmas on products of powers: factors of one base are one power, and meet their like inside of a sum.

The shift by a maximum, and a division by a sum of exponentials that something multiplies by again, cancel with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import (
    COMBINE,
    CONTRACT,
    combine,
    contract,
    elementwise,
    has_infinity,
    multiply_views,
    open_view,
)
from verifycompile.ir.exponential import EXPONENTIAL, POWER, is_positive, may_be_lowest
from verifycompile.ir.scalar import ONE, Scalar, add
from verifycompile.ir.sign import is_positive_sum
from verifycompile.ir.term import CONSTANT, Operation, TermPool, View
from verifycompile.rewrites.matching import matching_lemma


@matching_lemma("VL27", "merge-exponentials")
def merge_exponentials(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``exp(p x) exp(q x)`` is ``exp((p + q) x)``, and nothing where p + q is zero."""
    powers = [f for f in factors if f.term.operation is EXPONENTIAL]
    exponents = [open_view(f).operands[0] for f in powers]
    for k, first in enumerate(exponents):
        for j in range(k):
            other = exponents[j]
            if first.term is not other.term or first.axes != other.axes:
                continue
            if first.term.operation is COMBINE and may_be_lowest(first):
                continue  # zero times infinity
            pool.lemma_trace.append(("merge-exponentials", repr(first.term)))
            total = add(first.coefficient, other.coefficient)
            exponent = dataclasses.replace(first, coefficient=total)
            merged = [] if total == 0 else [elementwise(pool, EXPONENTIAL, (), (exponent,))]
            rest = [f for f in factors if f is not powers[k] and f is not powers[j]]
            return [*rest, *merged] or [pool.constant(Fraction(1), factors[0].shape)]
    return None


@matching_lemma("VL42", "merge-powers")
def merge_powers(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``a ** p`` times ``a ** q`` is ``a ** (p + q)`` where a is positive by construction."""
    bases = [_base(f) for f in factors]
    for k, first in enumerate(bases):
        for j in range(k):
            other = bases[j]
            if first is None or other is None or first[0] != other[0]:
                continue
            pool.lemma_trace.append(("merge-powers", repr(first[0].term)))
            rest = [f for i, f in enumerate(factors) if i not in (j, k)]
            total = add(first[1], other[1])
            if total == 1:
                rest.append(first[0])
            elif total != 0:
                rest.append(elementwise(pool, POWER, (total,), (first[0],)))
            return rest or [pool.constant(Fraction(1), factors[0].shape)]
    return None


def _base(view: View) -> tuple[View, Scalar] | None:
    """``(a, p)`` where the view is ``a ** p`` and a is a positive sum."""
    exponent: Scalar = ONE
    if view.term.operation is POWER:
        (exponent,) = view.term.attributes  # pyright: ignore[reportAssignmentType] - a scalar by construction
        (view,) = open_view(view).operands
    summed = view.term.operation is CONTRACT and view.term.summed
    return (view, exponent) if (summed and is_positive(view)) or is_positive_sum(view) else None


@matching_lemma("VL43", "exponential-meets-its-like")
def distribute_exponential(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``exp(p x) (a exp(q x) + b)`` is ``a exp((p + q) x) + b exp(p x)``."""
    exponents = [(f, open_view(f).operands[0]) for f in factors if f.term.operation is EXPONENTIAL]
    for total in factors if exponents else ():
        if total.term.operation is not COMBINE:
            continue
        parts = open_view(total).operands
        if any(has_infinity(part) for part in parts):
            continue
        for power, exponent in exponents:
            if any(_holds_exponential(part, exponent) for part in parts):
                pool.lemma_trace.append(("exponential-meets-its-like", repr(total.term)))
                inner = combine(pool, [multiply_views(pool, power, part).scaled(total.coefficient) for part in parts])
                return [*(f for f in factors if f is not total and f is not power), inner]
    return None


@matching_lemma("VL86", "weights-times-sum")
def distribute_weights(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``w (a + b)`` is ``w a + w b`` where exponentials are among the factors: the gradient of a softmax is one sum.

    Both sides must speak of exponentials, or a summand be a multiple of one; any other product of sums stays as it is.
    """
    weighted = any(_is_weight(factor) for factor in factors if factor.term.operation is not COMBINE)
    for total in factors:
        if total.term.operation is not COMBINE or len(factors) == 1:
            continue
        parts = open_view(total).operands
        if any(has_infinity(factor) for factor in (*factors, *parts)):
            continue
        if any(_is_multiple(part, EXPONENTIAL) or (weighted and _is_multiple(part, POWER)) for part in parts):
            pool.lemma_trace.append(("weights-times-sum", repr(total.term)))
            others = [factor for factor in factors if factor is not total]
            return [combine(pool, [multiply_views(pool, *others, part).scaled(total.coefficient) for part in parts])]
    return None


def _is_weight(view: View) -> bool:
    return view.term.operation is EXPONENTIAL or (view.term.operation is POWER and is_positive(view.unscaled()))


def _is_multiple(view: View, operation: Operation) -> bool:
    """Whether the operation is a factor of the view: an exponential, or a power of a sum of exponentials."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    for factor in view.term.operands if plain else (view,):
        if factor.term.operation is operation and (operation is EXPONENTIAL or is_positive(factor.unscaled())):
            return True
    return False


@matching_lemma("VL87", "sum-inside-of-weights")
def sum_inside_of_weights(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``sum_j (sum_l exp(s[k, l]) v[l, j]) g[k, j]`` is ``sum_l exp(s[k, l]) (sum_j v[l, j] g[k, j])``.

    Of the two orders the one in which the exponential stands outside: that of a softmax's gradient.
    """
    rank = factors[0].rank
    for total in factors if free < rank else ():
        if total.term.operation is not CONTRACT or not total.term.summed:
            continue
        opened = open_view(total)
        weights = [f for f in opened.operands if f.term.operation is EXPONENTIAL]
        bound = [d for d in range(free, rank) if total.uses(d) and not any(w.uses(d) for w in weights)]
        outer = [f for f in factors if f is not total]
        if not weights or not bound or any(v.term.operation is EXPONENTIAL and _uses_any(v, bound) for v in outer):
            continue
        shape = opened.shape
        wide = [View(f.coefficient, f.term, shape, f.axes) for f in outer]
        inner = [f for f in opened.operands if _uses_any(f, bound)]
        joined = [f for f in wide if _uses_any(f, bound)]
        shared = [d for d in range(rank) if d not in bound and any(w.uses(d) for w in weights)]
        if not any(f.uses(d) for f in joined for d in shared if not any(g.uses(d) for g in inner)):
            continue
        labels = tuple(range(len(shape)))
        kept = tuple(d for d in labels if d not in bound)
        pool.lemma_trace.append(("sum-inside-of-weights", repr(total.term)))
        summed = contract(pool, [*inner, *joined], tuple(labels for _ in (*inner, *joined)), kept, frozenset(bound))
        rest = [f for f in (*wide, *opened.operands) if not _uses_any(f, bound)]
        return [*(_without_dims(f, kept) for f in rest), summed.scaled(total.coefficient)]
    return None


def _uses_any(view: View, dims: Sequence[int]) -> bool:
    return any(view.uses(d) for d in dims)


def _without_dims(view: View, kept: Sequence[int]) -> View:
    position = {d: i for i, d in enumerate(kept)}
    axes = tuple(tuple(g if g[0] == CONSTANT else (position[g[0]], g[1], g[2]) for g in axis) for axis in view.axes)
    return View(view.coefficient, view.term, tuple(view.shape[d] for d in kept), axes)


def _holds_exponential(view: View, exponent: View) -> bool:
    """Whether a factor of a product is an exponential of a multiple of ``exponent``."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    for factor in open_view(view).operands if plain else (view,):
        if factor.term.operation is EXPONENTIAL:
            (found,) = open_view(factor).operands
            if found.term is exponent.term and found.axes == exponent.axes:
                return True
    return False
