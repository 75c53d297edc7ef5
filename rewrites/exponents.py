"""Lemmas on products of exponentials: factors whose exponents are multiples of one value are one exponential."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import elementwise, open_view
from verifycompile.ir.exponential import EXPONENTIAL
from verifycompile.ir.scalar import add
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
