"""Lemmas on products of powers: factors of one base are one power, and meet their like inside of a sum.

The shift by a maximum, and a division by a sum of exponentials that something multiplies by again, cancel with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, elementwise, has_infinity, multiply_views, open_view
from verifycompile.ir.exponential import EXPONENTIAL, POWER, is_positive
from verifycompile.ir.scalar import ONE, Scalar, add
from verifycompile.ir.term import TermPool, View
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
    return (view, exponent) if summed and is_positive(view) else None


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


def _holds_exponential(view: View, exponent: View) -> bool:
    """Whether a factor of a product is an exponential of a multiple of ``exponent``."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    for factor in open_view(view).operands if plain else (view,):
        if factor.term.operation is EXPONENTIAL:
            (found,) = open_view(factor).operands
            if found.term is exponent.term and found.axes == exponent.axes:
                return True
    return False
