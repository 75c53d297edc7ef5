"""Lemma on comparisons of counters: summed against ``n == j`` for all j, a value at j is the value at n.

The gradient of "this rank's slice" is zero but at this rank's place: the slice times ``place == coordinate``. Summed
over the ranks it is the whole gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import IOTA, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.relabel import UnalignedError, remove_dim, substitute
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, Axis, Digit, TermPool, View
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.one_hot import whole_dim


@matching_lemma("VL25", "join-equal-counters")
def join_equal_counters(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``sum_j (n == j) * f[j]`` is ``f[n]`` where j counts up to a size and n is spelled by digits below that size.

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
            summed = whole_dim(counter, shape)
            digits = _digits(number, shape)
            if summed is None or summed < free or digits is None or number.uses(summed):
                continue
            if product(size for _, _, size in digits) != shape[summed]:
                continue
            try:
                joined = [_at(factor, summed, digits) for factor in rest]
            except UnalignedError:
                continue
            pool.lemma_trace.append(("join-equal-counters", repr(mask.term)))
            return joined or [pool.constant(Fraction(1), (*shape[:summed], *shape[summed + 1 :]))]
    return None


def _digits(view: View, shape: Sequence[Size]) -> Axis | None:
    """The digits of the number that an ``iota`` view is, where it runs through all of the numbers below its size."""
    if view.term.operation is not IOTA or view.coefficient != 1:
        return None
    (axis,) = view.axes
    if any(digit[0] == CONSTANT for digit in axis):
        return None
    return axis


def _at(view: View, dim: int, digits: Axis) -> View:
    """``view`` with ``digits`` for the index of dimension ``dim``, which is dropped."""
    replacement: dict[int, list[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(view.shape)}
    replacement[dim] = list(digits)
    return remove_dim(substitute(view, replacement, view.shape), dim)
