"""Lemma on comparisons of counters: summed against ``n == j`` for all j, a value at j is the value at n.

The gradient of "this rank's slice" is zero but at this rank's place: the slice times ``place == coordinate``. Summed
over the ranks it is the whole gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import CONTRACT, IOTA, iota, open_view
from verifycompile.ir.indicator import EQUAL, equal
from verifycompile.ir.relabel import UnalignedError, extract, merge_digits, substitute
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Axis, Digit, TermPool, View
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
            joined = _joined(rest, number, counter, shape, free)
            if joined is not None:
                pool.lemma_trace.append(("join-equal-counters", repr(mask.term)))
                return joined or [pool.constant(Fraction(1), _without(shape, counter))]
    return None


def _joined(
    factors: Sequence[View], number: View, counter: View, shape: tuple[Size, ...], free: int
) -> list[View] | None:
    """The factors at the summed dimensions that spell ``counter`` where it is the ``number``."""
    place = _places(number, counter, shape, free)
    if place is None:
        return None
    # Nothing reads the summed dimensions any more: of size 1 they add nothing to the sum.
    remaining = _without(shape, counter)
    replacement = {d: place.get(d, [(d, 1, s)]) for d, s in enumerate(shape)}
    try:
        return [substitute(factor, replacement, remaining) for factor in factors]
    except UnalignedError:
        return None


def _without(shape: tuple[Size, ...], counter: View) -> tuple[Size, ...]:
    counted = {digit[0] for digit in counter.axes[0]}
    return tuple(1 if d in counted else size for d, size in enumerate(shape))


@matching_lemma("VL94", "lookups-at-one-place")
def lookups_at_one_place(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``(x == v)`` times the sum over w of ``(x == w) f[w]`` is ``(x == v) f[v]``, where they are one product."""
    lookups = [factor for factor in factors if factor.term.operation is EQUAL and factor.coefficient == 1]
    for first, second in itertools.permutations(lookups, 2) if len(lookups) > 1 else ():
        for index, number in _counted_comparisons(first):
            for other, counter in _counted_comparisons(second):
                if index != other or any(index.uses(digit[0]) for digit in counter.axes[0]):
                    continue
                rest = [factor for factor in factors if factor is not second]
                joined = _joined(rest, number, counter, factors[0].shape, free)
                if joined is not None:
                    pool.lemma_trace.append(("lookups-at-one-place", repr(index.term)))
                    return joined
    return None


def _counted_comparisons(lookup: View) -> Iterator[tuple[View, View]]:
    """``(x, v)`` where the view is ``x == v`` and v counts."""
    operands = open_view(lookup).operands
    for index, counter in (operands, operands[::-1]):
        if counter.term.operation is IOTA and counter.coefficient == 1:
            yield index, counter


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


@matching_lemma("VL47", "sum-of-counted-digits")
def sum_of_counted_digits(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The sum over k of ``n == m j + k``, where k counts to m, is ``n // m == j``; so for any digits of a counter."""
    for factor in factors:
        found = _other_digits(pool, factor)
        if found is not None:
            pool.lemma_trace.append(("sum-of-counted-digits", repr(factor.term)))
            return [*(f for f in factors if f is not factor), *found]
    return None


def _other_digits(pool: TermPool, view: View) -> Sequence[View] | None:
    """The comparisons of the digits that are not summed; None where the view is no such sum."""
    term = view.term
    if term.operation is not CONTRACT or not term.summed or [v.term.operation for v in term.operands] != [EQUAL]:
        return None
    opened = open_view(view)
    (mask,) = opened.operands
    operands = open_view(mask).operands
    summed = set(opened.summed)
    for number, counter in (operands, operands[::-1]):
        if number.term.operation is not IOTA or counter.term is not number.term:
            continue
        if number.coefficient != 1 or counter.coefficient != 1 or any(number.uses(d) for d in summed):
            continue
        digits = counter.axes[0]
        bound = [d for d in digits if d[0] in summed]
        whole = all(divisor == 1 and opened.shape[dim] == size for dim, divisor, size in bound)
        if not whole or {d[0] for d in bound} != summed or len(bound) != len(summed):
            continue
        try:
            pairs = _compared(number.axes[0], digits, summed)
        except UnalignedError:
            continue
        masks = [(_counter(pool, view.shape, left), _counter(pool, view.shape, right)) for left, right in pairs]
        return [equal(pool, *pair) for pair in masks] or [pool.constant(Fraction(1), view.shape)]
    return None


def _compared(number: Axis, digits: Axis, summed: set[int]) -> list[tuple[Axis, Axis]]:
    """Runs of digits that are not summed, each with the digits of the number at its place."""
    pairs: list[tuple[Axis, Axis]] = []
    weight: Size = 1
    run: list[Digit] = []
    for digit in (*reversed(digits), None):
        if digit is not None and digit[0] not in summed:
            run.insert(0, digit)
            continue
        if run:
            size = product(d[2] for d in run)
            pairs.append((merge_digits(extract(number, weight, size)), merge_digits(run)))
            weight, run = product((weight, size)), []
        if digit is not None:
            weight = product((weight, digit[2]))
    return pairs


def _counter(pool: TermPool, shape: tuple[Size, ...], digits: Axis) -> View:
    """The number that digits spell."""
    counter = iota(pool, product(d[2] for d in digits))
    return View(Fraction(1), counter.term, shape, (digits,))
