"""Lemma on comparisons of counters: summed against ``n == j`` for all j, a value at j is the value at n.

The gradient of "this rank's slice" is zero but at this rank's place: the slice times ``place == coordinate``. Summed
over the ranks it is the whole gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import IOTA, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.relabel import UnalignedError, extract, substitute
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Digit, TermPool, View
from verifycompile.rewrites.matching import matching_lemma


@matching_lemma("VL25", "join-equal-counters")
def join_equal_counters(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``sum_j (n == j) * f[j]`` is ``f[n]`` where j counts up to a size and n is spelled by digits below that size.

    Several summed dimensions may spell j, as the rank and the row do in a table that is sharded.
    ``free``: dimensions from there on are summed.
    """
    shape = factors[0].shape
    for mask in factors:
        if mask.term.operation is not EQUAL or mask.coefficient != 1:
            continue
        operands = open_view(mask).operands
        rest = [factor for factor in factors if factor is not mask]
        if operands[0] == operands[1]:
            pool.lemma_trace.append(("join-equal-counters", repr(mask.term)))
            return rest or [pool.constant(Fraction(1), shape)]
        for number, counter in (operands, operands[::-1]):
            place = _places(number, counter, shape, free)
            if place is None:
                continue
            # Nothing reads the summed dimensions any more: of size 1 they add nothing to the sum.
            remaining = tuple(1 if d in place else s for d, s in enumerate(shape))
            replacement = {d: place.get(d, [(d, 1, s)]) for d, s in enumerate(shape)}
            try:
                joined = [substitute(factor, replacement, remaining) for factor in rest]
            except UnalignedError:
                continue
            pool.lemma_trace.append(("join-equal-counters", repr(mask.term)))
            return joined or [pool.constant(Fraction(1), remaining)]
    return None


def _places(number: View, counter: View, shape: tuple[Size, ...], free: int) -> dict[int, Sequence[Digit]] | None:
    """Summed dimensions that spell ``counter``, each as digits of the equal ``number``."""
    for view in (number, counter):
        if view.term.operation is not IOTA or view.coefficient != 1:
            return None
    digits = counter.axes[0]
    whole = all(dim >= free and divisor == 1 and shape[dim] == size for dim, divisor, size in digits)
    if number.term is not counter.term or not whole or any(number.uses(d[0]) for d in digits):
        return None
    places: dict[int, Sequence[Digit]] = {}
    weight: Size = 1
    for dim, _, size in reversed(digits):
        try:
            places[dim] = extract(number.axes[0], weight, size)
        except UnalignedError:
            return None
        weight = product((weight, size))
    return places
