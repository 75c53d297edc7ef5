"""Comparisons of counters: summed against ``n == j`` for all j, a value at j is the value at n.

The gradient of "this rank's slice" is zero but at this rank's place: the slice times ``place == coordinate``. Summed
over the ranks it is the whole gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import IOTA, iota, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.relabel import UnalignedError, extract, merge_digits
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Axis, TermPool, View
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal
from verifycompile.rewrites.lemmas.indicators import (
    COMPARED_DIGITS,
    EQUAL_TO_ITSELF,
    LOOK_UP,
    LOOK_UP_AGAIN,
    PLACE_LOOKED_UP,
)
from verifycompile.rewrites.lemmas.read import counts
from verifycompile.rewrites.lemmas.substitution import Substitution
from verifycompile.rewrites.parts.beside_masks import positions_compared


def _equal_counters(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """``n == n``, and sums over j under ``n == j``, where several summed dimensions may spell j.

    As the rank and the row do in a table that is sharded.
    """
    for mask in factors:
        if mask.term.operation is not EQUAL or mask.coefficient != 1:
            continue
        operands = open_view(mask).operands
        if operands[0] == operands[1]:
            yield Proposal(EQUAL_TO_ITSELF, Substitution({"a": (operands[0],)}), (mask,))
        rest = tuple(factor for factor in factors if factor is not mask)
        for number, counter in (operands, operands[::-1]):
            dims = _counted(number, counter, factors[0].shape, free)
            if dims is not None:
                yield Proposal(LOOK_UP, Substitution({"n": (number,), "a": rest}, indices={"j": dims}), factors)


def _places_looked_up(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """The sum over j of ``j (n == j)``, which looks n up; and of ``n == j``, where n is the place of an extreme."""
    for mask in factors:
        if mask.term.operation is not EQUAL or mask.coefficient != 1:
            continue
        operands = open_view(mask).operands
        for number, counter in (operands, operands[::-1]):
            dims = _summed_dims(counter, factors[0].shape, free)
            if dims is None or number.term.operation is IOTA or any(number.uses(dim) for dim in dims):
                continue
            rest, indices = tuple(factor for factor in factors if factor is not mask), {"j": dims}
            reading = [factor for factor in rest if any(factor.uses(dim) for dim in dims)]
            if not reading and number.term.operation.places:
                yield Proposal(LOOK_UP, Substitution({"n": (number,), "a": rest}, indices=indices), factors)
            for place in reading:
                if (place.term, place.axes, place.coefficient) == (counter.term, counter.axes, 1):
                    others = tuple(factor for factor in rest if factor is not place)
                    values = {"n": (number,), "a": others}
                    yield Proposal(PLACE_LOOKED_UP, Substitution(values, indices=indices), factors)


def _counted(number: View, counter: View, shape: tuple[Size, ...], free: int) -> tuple[int, ...] | None:
    """The summed dimensions that spell ``counter``, where ``number`` counts as far and reads none of them."""
    if number.term is not counter.term or number.term.operation is not IOTA or number.coefficient != 1:
        return None
    dims = _summed_dims(counter, shape, free)
    return None if dims is None or any(number.uses(dim) for dim in dims) else dims


def _summed_dims(counter: View, shape: tuple[Size, ...], free: int) -> tuple[int, ...] | None:
    """The summed dimensions that spell a counter; None where something else does."""
    if counter.term.operation is not IOTA or counter.coefficient != 1:
        return None
    digits = counter.axes[0]
    whole = all(dim >= free and divisor == 1 and shape[dim] == size for dim, divisor, size in digits)
    return tuple(digit[0] for digit in digits) if whole else None


def _look_ups_again(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Two look-ups of one index, of which the position of one counts what is summed."""
    lookups = [factor for factor in factors if factor.term.operation is EQUAL and factor.coefficient == 1]
    for first, second in itertools.permutations(lookups, 2) if len(lookups) > 1 else ():
        rest = tuple(factor for factor in factors if factor is not first and factor is not second)
        for index, number in positions_compared(first):
            for other, counter in positions_compared(second):
                dims = _counted(number, counter, factors[0].shape, free)
                if index == other and dims is not None and not any(index.uses(dim) for dim in dims):
                    values = {"x": (index,), "n": (number,), "a": rest}
                    yield Proposal(LOOK_UP_AGAIN, Substitution(values, indices={"j": dims}), factors)


def _compared_digits(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """Comparisons of counters of which some digits alone are summed: these can be compared by themselves."""
    for mask in factors:
        if mask.term.operation is not EQUAL or mask.coefficient != 1:
            continue
        operands = open_view(mask).operands
        for number, counter in (operands, operands[::-1]):
            if not counts(number) or counter.term is not number.term or counter.coefficient != 1:
                continue
            digits = counter.axes[0]
            summed = [dim >= free for dim, _, _ in digits]
            if any(number.uses(digit[0]) for digit, bound in zip(digits, summed, strict=True) if bound):
                continue
            for place in range(1, len(digits)):
                given = _two_parts(pool, number, digits, place) if summed[place - 1] != summed[place] else None
                if given is not None:
                    yield Proposal(COMPARED_DIGITS, given, (mask,))


def _two_parts(pool: TermPool, number: View, digits: Axis, place: int) -> Substitution | None:
    """The digits before a place and those from it on, each with the number's digits at their place."""
    upper, lower = (product(digit[2] for digit in part) for part in (digits[:place], digits[place:]))
    try:
        above, below = extract(number.axes[0], lower, upper), extract(number.axes[0], 1, lower)
    except UnalignedError:
        return None
    spelled = {"a": above, "c": below, "d": digits[:place], "e": digits[place:]}
    values = {name: (_counter(pool, number.shape, merge_digits(part)),) for name, part in spelled.items()}
    return Substitution(values, {"q": as_scalar(lower)})


def _counter(pool: TermPool, shape: tuple[Size, ...], digits: Axis) -> View:
    """The number that digits spell."""
    counter = iota(pool, product(d[2] for d in digits))
    return View(counter.coefficient, counter.term, shape, (digits,) if digits else ())


equal_counters = ProductFinder(_equal_counters, among_masks=True)
places_looked_up = ProductFinder(_places_looked_up, among_masks=True)
look_ups_again = ProductFinder(_look_ups_again, among_masks=True)
compared_digits = ProductFinder(_compared_digits, among_masks=True)
