"""Inequalities between whole numbers in one form: ``left <= right + c``.

Everything is brought to one side first, so that ``q - k >= 0``, ``k < q + 1`` and ``not k > q`` are one term, and so
are the masks that programs make of them. Counters are taken apart into digits, which cancel where both sides have them.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, elementwise, iota, max_size, open_view
from verifycompile.ir.pieces import CONCATENATE, STACK
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.scalar import ONE, Scalar, add, as_scalar, multiply
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, UNIT, Digit, Operation, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty

AT_MOST = Operation("at_most", indicator=True, attributes_by_piece=True)
"""``left <= right + c`` of whole numbers; the attribute is c. What is subtracted on one side stands on the other."""


def is_whole(view: View) -> bool:
    """Whether every element is a whole number by construction."""
    if view.is_zero:
        return True
    if not isinstance(view.coefficient, Fraction) or view.coefficient.denominator != 1:
        return False
    return _WHOLE(view.term)


def _may_be_made_of_wholes(term: Term) -> bool:
    return term.operation in (COMBINE, CONTRACT) or term.operation.copies


def _is_whole(term: Term) -> bool:
    if term.operation.whole or term.operation.indicator:
        return True
    return _may_be_made_of_wholes(term) and all(is_whole(operand) for operand in term.operands)


_WHOLE = TermProperty(_may_be_made_of_wholes, _is_whole)


def whole_at_most(pool: TermPool, left: View, right: View, strict: bool = False) -> View | None:
    """The indicator of ``left <= right``; None where what is compared is not made of whole numbers.

    ``strict``: of ``left < right``.
    """
    shape = tuple(max_size(s, t) for s, t in zip(left.shape, right.shape, strict=True))
    difference = Difference(pool, shape)
    if not (difference.take(right, ONE) and difference.take(left, -ONE)):
        return None
    return difference.indicator(strict)


def is_attained(view: View, bound: Collection[int], opposite: bool = False) -> bool:
    """Whether ``view`` is an inequality that for all other indices some value of the indices ``bound`` fulfils.

    ``opposite``: its negation.
    """
    known = _of_digits(view, opposite)
    if known is None:
        return False
    digits, least = known
    for (dim, _, size), weight in digits.items():
        reach = weight * (size - 1)
        least += max(reach, 0) if dim in bound else min(reach, 0)
    return least >= 0


def are_attained(views: Sequence[View], bound: Collection[int]) -> bool:
    """Whether ``views`` are inequalities that for all other indices some value of ``bound`` fulfils all at once.

    Each must bound the number that ``bound`` spells from above or from below: there is one between all bounds where
    no lower one is above an upper one.
    """
    if len(views) == 1:
        return is_attained(views[0], bound)
    sides: dict[int, list[_OfDigits]] = {1: [], -1: []}
    counters: set[tuple[_Known, ...]] = set()
    for view in views:
        known = _of_digits(view)
        found = None if known is None else _without_counter(known, bound)
        if found is None:
            return False
        sign, counter, rest = found
        sides[sign].append(rest)
        counters.add(counter)
    if len(counters) != 1:
        return False
    last = math.prod(size for _, _, size in counters.pop()) - 1
    lower, upper = [_OfDigits({}, Fraction(0)), *sides[1]], [_OfDigits({}, Fraction(last)), *sides[-1]]
    return all(_least(low, high) >= 0 for low in lower for high in upper)


_Known = tuple[int, Size, int]
"""A digit of which the size is known."""


class _OfDigits(NamedTuple):
    """``sum(weight * digit) + constant``."""

    digits: Mapping[_Known, Fraction]
    constant: Fraction


def _of_digits(view: View, opposite: bool = False) -> _OfDigits | None:
    """What is at least this is to be at least zero; None where no sum of digits is known. ``opposite``: negated."""
    if view.term.operation is not AT_MOST:
        return None
    left, right = open_view(view).operands
    (constant,) = view.term.attributes
    assert isinstance(constant, int)
    if opposite:
        left, right, constant = right, left, -constant - 1
    difference = Difference(NO_POOL, view.shape)
    difference.constant += constant
    return _bounded(difference) if difference.take(right, ONE) and difference.take(left, -ONE) else None


def _bounded(difference: Difference) -> _OfDigits | None:
    """Digits of known sizes and weights, and the least of what is concatenated or stacked; None where it is unknown."""
    digits, total = _known(difference.digits), difference.constant
    for view, weight in difference.others.items():
        if view.term.operation not in (CONCATENATE, STACK):
            return None
        least: list[Fraction] = []
        for operand in view.term.operands:
            piece = Difference(NO_POOL, view.term.index_sizes)
            bound = _bounded(piece) if piece.take(operand, weight) else None
            if bound is None:
                return None
            least.append(_least(bound, _OfDigits({}, Fraction(0))))
        total += min(least)
    return None if digits is None else _OfDigits(digits, total)


def _known(digits: Mapping[Digit, Scalar]) -> dict[_Known, Fraction] | None:
    """The digits cut where others begin or end; None where a size or a weight is not known."""
    split = split_digits(digits)
    known = {
        (dim, divisor, size): weight
        for (dim, divisor, size), weight in split.items()
        if isinstance(size, int) and isinstance(weight, Fraction)
    }
    return known if len(known) == len(split) else None


def _without_counter(known: _OfDigits, bound: Collection[int]) -> tuple[int, tuple[_Known, ...], _OfDigits] | None:
    """The sign with which the number that the digits of ``bound`` spell is counted, these digits, and the rest.

    None where they spell no number with a weight of one.
    """
    own = {digit: weight for digit, weight in known.digits.items() if digit[0] in bound and weight != 0}
    ordered = sorted(own, key=lambda digit: abs(own[digit]))
    signs = {1 if weight > 0 else -1 for weight in own.values()}
    places = itertools.accumulate((size for _, _, size in ordered), operator.mul, initial=1)
    if len(signs) != 1 or any(abs(own[digit]) != place for digit, place in zip(ordered, places, strict=False)):
        return None
    rest = {digit: weight for digit, weight in known.digits.items() if digit not in own}
    return signs.pop(), tuple(ordered), _OfDigits(rest, known.constant)


def _least(one: _OfDigits, other: _OfDigits) -> Fraction:
    """A number that the sum of both is never below."""
    total: dict[Digit, Scalar] = {**one.digits}
    for digit, weight in other.digits.items():
        total[digit] = add(total.get(digit, Fraction(0)), weight)
    known = _known(total)
    assert known is not None
    return one.constant + other.constant + sum(min(weight * (size - 1), 0) for (_, _, size), weight in known.items())


def turned_round(pool: TermPool, view: View) -> View:
    """The negation of an inequality."""
    left, right = open_view(view).operands
    (constant,) = view.term.attributes
    assert isinstance(constant, int)
    return elementwise(pool, AT_MOST, (-constant - 1,), (right, left))


NO_POOL = TermPool()


class Difference:
    """``sum(weight * digit) + sum(coefficient * view) + constant``, which is to be at least zero."""

    def __init__(self, pool: TermPool, shape: tuple[Size, ...]) -> None:
        self.pool, self.shape, self.constant = pool, shape, Fraction(0)
        self.digits: dict[Digit, Scalar] = {}
        self.others: dict[View, Scalar] = {}

    def take(self, view: View, factor: Scalar) -> bool:
        """Add a multiple of a view; False where it is not made of whole numbers."""
        factor = multiply(factor, view.coefficient)
        if factor == 0:
            return True
        if view.term.operation is UNIT:
            if not isinstance(factor, Fraction):
                return False
            self.constant += factor
            return True
        if view.term.operation is COMBINE:
            return all(self.take(operand, factor) for operand in open_view(view.unscaled()).operands)
        if view.term.operation is IOTA:
            return self._take_counter(view, factor)
        key = View(ONE, view.term, self.shape, view.axes)
        if not is_whole(key):
            return False
        self.others[key] = add(self.others.get(key, Fraction(0)), factor)
        return True

    def _take_counter(self, view: View, factor: Scalar) -> bool:
        weight: Size = 1
        for digit in reversed(view.axes[0]):
            scale = multiply(factor, as_scalar(weight))
            if digit[0] == CONSTANT:
                value = multiply(scale, as_scalar(digit[1]))
                if not isinstance(value, Fraction):
                    return False
                self.constant += value
            else:
                self.digits[digit] = add(self.digits.get(digit, Fraction(0)), scale)
            weight = product((weight, digit[2]))
        return True

    def indicator(self, strict: bool) -> View | None:
        """The inequality; a constant where all values of its digits decide it."""
        digits = merged_digits({d: w for d, w in split_digits(self.digits).items() if w != 0})
        others = {v: c for v, c in self.others.items() if c != 0}
        constant = self.constant
        if all(isinstance(weight, Fraction) for weight in (*digits.values(), *others.values())):
            constant = _reduce(digits, others, constant, strict)  # pyright: ignore[reportArgumentType]  # rational numbers
            found = None if others else self._decided(digits, constant)
            if found is not None:
                return found
        elif constant.denominator == 1 and all(_is_whole_number(w) for w in (*digits.values(), *others.values())):
            constant -= strict
        else:
            return None
        sides: dict[int, list[View]] = {1: [], -1: []}
        for weight, view in [
            *((w, View(ONE, iota(self.pool, d[2]).term, self.shape, ((d,),))) for d, w in digits.items()),
            *((c, v) for v, c in others.items()),
        ]:
            sign = _sign(weight)
            if sign is None:
                return None
            sides[sign].append(view.scaled(weight if sign == 1 else multiply(weight, -ONE)))
        left, right = (
            combine(self.pool, sides[sign]) if sides[sign] else self.pool.zero(self.shape) for sign in (-1, 1)
        )
        return elementwise(self.pool, AT_MOST, (int(constant),), (left, right))

    def _decided(self, digits: dict[Digit, Scalar], constant: Fraction) -> View | None:
        """One where the least value is not negative, zero where the largest is; parts of both; None otherwise."""
        least = largest = constant
        for (_, _, size), weight in digits.items():
            if not isinstance(size, int):
                return None
            least += min(weight * (size - 1), 0)
            largest += max(weight * (size - 1), 0)
        if least >= 0 or largest < 0:
            return self.pool.constant(Fraction(least >= 0), self.shape)
        return self._in_parts(digits, constant)

    def _in_parts(self, digits: dict[Digit, Scalar], constant: Fraction) -> View | None:
        """The bound of one position as ones and zeros, where values are assembled from parts."""
        if self.pool.piecewise is None or len(digits) != 1:
            return None
        (((dim, _, size), weight),) = digits.items()
        if size != self.shape[dim]:
            return None
        first = -int(constant) if weight == 1 else int(constant) + 1
        before, after = (Fraction(0), ONE) if weight == 1 else (ONE, Fraction(0))
        self.pool.lemma_trace.append(("bounded-positions", ""))
        parts = [
            self.pool.constant(value, (*self.shape[:dim], length, *self.shape[dim + 1 :]))
            for value, length in ((before, first), (after, size - first))
        ]
        return self.pool.piecewise.joined(self.pool, parts, dim)


def _is_whole_number(value: Scalar) -> bool:
    return value.denominator == 1 if isinstance(value, Fraction) else value.is_integer is True


def _sign(value: Scalar) -> int | None:
    if isinstance(value, Fraction):
        return 1 if value > 0 else -1
    if value.is_positive:
        return 1
    return -1 if value.is_negative else None


def split_digits(digits: Mapping[Digit, Scalar]) -> dict[Digit, Scalar]:
    """Digits of one dimension cut where other digits of it begin or end, so that equal parts meet."""
    result: dict[Digit, Scalar] = {}
    for (dim, divisor, size), weight in digits.items():
        cuts = [divisor, product((divisor, size))]
        for other, low, extent in digits:
            if other == dim:
                cuts += [low, product((low, extent))]
        for part, scale in _parts((dim, divisor, size), cuts):
            result[part] = add(result.get(part, Fraction(0)), multiply(weight, as_scalar(scale)))
    return result


def _parts(digit: Digit, cuts: Sequence[Size]) -> Iterable[tuple[Digit, Size]]:
    """The digit in parts with the weight of each; as it is where the cuts do not nest."""
    dim, divisor, size = digit
    if not isinstance(divisor, int) or not isinstance(size, int):
        return [(digit, 1)]
    inside = sorted({cut for cut in cuts if isinstance(cut, int) and divisor <= cut <= divisor * size})
    steps = list(itertools.pairwise(inside))
    if any(high % low for low, high in steps):
        return [(digit, 1)]
    return [((dim, low, high // low), low // divisor) for low, high in steps]


def merged_digits(digits: dict[Digit, Scalar]) -> dict[Digit, Scalar]:
    """Neighbouring digits of one dimension whose weights fit, as one digit."""
    for high, weight in digits.items():
        for low, below in digits.items():
            joined = merge_digits((high, low))
            if len(joined) == 1 and weight == multiply(below, as_scalar(low[2])):
                rest = {d: w for d, w in digits.items() if d not in (high, low)}
                return merged_digits({**rest, joined[0]: below})
    return digits


def _reduce(digits: dict[Digit, Fraction], others: dict[View, Fraction], constant: Fraction, strict: bool) -> Fraction:
    """Drop what rounding takes away: ``4 a + i >= 0`` with ``0 <= i < 4`` is ``a >= 0``. Divides by common factors.

    ``strict``: the sum is to be greater than zero.
    """
    while True:
        weights = [*digits.values(), *others.values()]
        denominator = math.lcm(*(w.denominator for w in weights))
        common = Fraction(math.gcd(*(int(w * denominator) for w in weights)) or 1, denominator)
        constant = Fraction(math.ceil(constant / common) - 1 if strict else math.floor(constant / common))
        strict = False
        for mapping in (digits, others):
            for key, weight in mapping.items():
                mapping[key] = weight / common  # pyright: ignore[reportArgumentType]  # a key of this mapping
        negligible = _negligible(digits, others, constant)
        if negligible is None:
            return constant
        del digits[negligible]


def _negligible(digits: dict[Digit, Fraction], others: dict[View, Fraction], constant: Fraction) -> Digit | None:
    """A digit whose value never decides: all other weights are multiples of a step that it does not fill."""
    for digit, weight in digits.items():
        if not isinstance(digit[2], int):
            continue
        rest = [int(w) for d, w in (*digits.items(), *others.items()) if d != digit]
        step = math.gcd(*rest)
        reach = weight * (digit[2] - 1)
        if step > 1 and 0 <= constant % step + reach < step:
            return digit
    return None
