"""Numbers that tell values apart: what differs in one interpretation of the ring is not equal by its laws.

Every term that is neither a sum nor a product is read as a number that depends on nothing but the term, and of a
function but the numbers of its operands: as a tensor of equal elements. A sum over an index is then a multiplication by
the size, so a value is one number modulo a prime, found in one walk over the terms. Two values with different numbers
are not equal by any law of sums and products, nor by the laws of powers and exponentials, which hold in this
interpretation too. Equal numbers prove nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, has_infinity
from verifycompile.ir.exponential import EXPONENTIAL, POWER
from verifycompile.ir.term import UNIT, Term, View, terms_of
from verifycompile.walks import parts_first

PRIME = 2305843009213691579
"""A safe prime: half of the numbers, the squares, have unique roots of every order that occurs."""
ORDER = (PRIME - 1) // 2
"""Of the group of squares."""
_MULTIPLIER = 6364136223846793005


def fingerprint(view: View) -> int | None:
    """The number of a value; None where other laws may apply to it, or it has no number."""
    return _EVERY_LAW.of(view)


def likely_fingerprint(view: View) -> int | None:
    """The number of a value where no other laws apply: what they may say more of is a number of its own.

    Values that are equal by such laws may have different ones: this tells what to ask first, and nothing else.
    """
    return _RING_ALONE.of(view)


class _Interpretation:
    """``other_laws``: whether a value has no number where other laws may apply to it."""

    def __init__(self, *, other_laws: bool) -> None:
        self._other_laws = other_laws
        self._known: weakref.WeakKeyDictionary[Term, int | None] = weakref.WeakKeyDictionary()

    def of(self, view: View) -> int | None:
        base = parts_first(self._known, view.term, self._asked, self._found)
        coefficient = of_number(view.coefficient)
        return None if base is None or coefficient is None else base * coefficient % PRIME

    def _asked(self, term: Term) -> Iterable[Term]:
        return terms_of(term) if term.operation in (COMBINE, CONTRACT) or not has_laws(term) else ()

    def _found(self, term: Term) -> int | None:
        operation = term.operation
        if operation is UNIT:
            return 1
        if operation is COMBINE:
            total = 0
            for operand in term.operands:
                number = self.of(operand)
                if number is None:
                    return None
                total += number
            return total % PRIME
        if operation is CONTRACT:
            return self._of_product(term)
        if operation is EXPONENTIAL:
            (exponent,) = term.operands
            return _power(self._of_function(term), exponent.coefficient)
        if operation is POWER:
            base = self.of(term.operands[0])
            (exponent,) = term.attributes
            return None if base is None else _power(base, exponent)
        if has_laws(term):
            return None if self._other_laws else square(term.id)
        return self._of_function(term)

    def _of_function(self, term: Term) -> int:
        """One number for what is computed in one way of values with equal numbers, as parts of a value are."""
        numbers = [self._known.get(operand.term) for operand in term.operands]
        if not numbers or None in numbers:
            return square(term.id)
        return square(hash((term.operation, term.attributes, *numbers)) % PRIME)

    def _of_product(self, term: Term) -> int | None:
        result = 1
        for i in term.summed_indices:
            size = term.index_sizes[i]
            if not isinstance(size, int):
                return None
            result = result * size % PRIME
        for operand in term.operands:
            number = self.of(operand)
            if number is None:
                return None
            result = result * number % PRIME
        return result


_EVERY_LAW, _RING_ALONE = _Interpretation(other_laws=True), _Interpretation(other_laws=False)


def has_laws(term: Term) -> bool:
    """Whether a lemma on products may know more of a term than that it is one."""
    operation = term.operation
    return (
        operation.indicator
        or operation.whole
        or operation.places
        or operation.copies
        or operation.jointly_linear
        or bool(operation.linear)
        or operation is IOTA
        or (not term.operands and has_infinity(View(Fraction(1), term, term.shape, ())))
    )  # fmt: skip


def square(number: int) -> int:
    """A square other than zero and one, one for each number."""
    root = (number + 2) * _MULTIPLIER % PRIME
    return root * root % PRIME


def _power(base: int, exponent: object) -> int | None:
    """``base ** exponent``; only squares have roots."""
    if not isinstance(exponent, Fraction) or base == 0:
        return None
    if exponent.denominator == 1:
        return pow(base, exponent.numerator % (PRIME - 1), PRIME)
    if exponent.denominator % ORDER == 0 or pow(base, ORDER, PRIME) != 1:
        return None
    return pow(base, exponent.numerator * pow(exponent.denominator, -1, ORDER) % ORDER, PRIME)


def of_number(value: object) -> int | None:
    if not isinstance(value, Fraction) or value.denominator % PRIME == 0:
        return None
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME
