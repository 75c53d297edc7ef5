"""Numbers of values at two places of each index: what differs from its mean is not zero there.

In `fingerprint.py` a value is one number, so what is centred, as in layer normalization, is zero, and so is all that is
computed of it. Here every index has two places, each for half of its elements, and the place of an index that is made
of digits is the parity of theirs, however it is cut into digits. Elements at a constant position are read at the first
place. Nothing rests on these numbers: they tell what to ask first.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from verifycompile.ir.algebra import COMBINE, CONTRACT
from verifycompile.ir.exponential import EXPONENTIAL, POWER
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, UNIT, Axis, Term, View, terms_of
from verifycompile.refinement.fingerprint import ORDER, PRIME, has_laws, of_number, square
from verifycompile.walks import parts_first

_MOST_INDICES = 10

Numbers = np.ndarray[Any, np.dtype[np.object_]]
"""Numbers modulo the prime, with two places along each dimension."""

_KNOWN: weakref.WeakKeyDictionary[Term, Numbers | None] = weakref.WeakKeyDictionary()


def sums_at_two_places(view: View, dims: Sequence[int]) -> Iterator[int]:
    """A number for the value summed over each selection of ``dims``, whatever the order of its dimensions is."""
    numbers = _at(view, view.axes, view.shape)
    if numbers is None or not numbers.any():
        return
    for count in range(len(dims) + 1):
        for some in itertools.combinations(dims, count):
            total = _summed(numbers, view.shape, some)
            if total is not None:
                moment = np.sum(total * total % PRIME * (total + 5))
                yield hash(("two places", int(moment * _half(total.ndim) % PRIME)))


def _half(times: int) -> int:
    return pow(pow(2, times, PRIME), -1, PRIME)


def _summed(numbers: Numbers, shape: Sequence[Size], dims: Sequence[int]) -> Numbers | None:
    """The sum over dimensions, of which each place holds half of the elements."""
    factor = _half(len(dims))
    for dim in dims:
        size = shape[dim]
        if not isinstance(size, int):
            return None
        factor = factor * size % PRIME
    return np.asarray(np.sum(numbers, axis=tuple(dims)) * factor % PRIME, dtype=object)


def _at(view: View, axes: Sequence[Axis], shape: Sequence[Size]) -> Numbers | None:
    base = parts_first(_KNOWN, view.term, _asked, _found)
    coefficient = of_number(view.coefficient)
    if base is None or coefficient is None or len(shape) > _MOST_INDICES:
        return None
    places = np.indices((2,) * len(shape), sparse=True)
    first = np.zeros((2,) * len(shape), dtype=np.intp)
    at = [
        functools.reduce(np.bitwise_xor, [places[dim] for dim, _, size in axis if dim != CONSTANT and size != 1], first)
        for axis in axes
    ]
    read = base[tuple(at)] if at else np.full(first.shape, base.item(), dtype=object)
    return np.asarray(read * coefficient % PRIME, dtype=object)


def _asked(term: Term) -> Iterable[Term]:
    return terms_of(term) if term.operation in (COMBINE, CONTRACT) or not has_laws(term) else ()


def _found(term: Term) -> Numbers | None:
    if len(term.index_sizes) > _MOST_INDICES:
        return None
    operation, shape = term.operation, (2,) * len(term.index_sizes)
    if not term.operands or (has_laws(term) and operation not in (COMBINE, CONTRACT)):
        start = 1 if operation is UNIT else square(term.id)
        numbers = [start] if operation is UNIT else [square(hash((start, k)) % PRIME) for k in range(2**term.free)]
        return np.array(numbers, dtype=object).reshape((2,) * term.free)
    operands = [_at(operand, operand.axes, term.index_sizes) for operand in term.operands]
    known = [numbers for numbers in operands if numbers is not None]
    if len(known) < len(operands):
        return None
    if operation is COMBINE:
        return np.asarray(sum(known) % PRIME, dtype=object)
    if operation is CONTRACT:
        product = np.ones(shape, dtype=object)
        for numbers in known:
            product = np.asarray(product * numbers % PRIME, dtype=object)
        return _summed(product, term.index_sizes, term.summed_indices)
    if term.cores or term.fresh or term.summed:
        every = hash((operation, term.attributes, *(int(n.sum() % PRIME) for n in known)))
        return np.full((2,) * term.free, square(every % PRIME), dtype=object)
    exponent = term.attributes[0] if operation is POWER else None
    if operation is EXPONENTIAL:
        (operand,) = term.operands
        unscaled, exponent = _at(operand.unscaled(), operand.axes, term.index_sizes), operand.coefficient
        assert unscaled is not None
        known = [unscaled]
    flat = zip(*(numbers.ravel().tolist() for numbers in known), strict=True)
    if operation is POWER:
        values = [_power(base, exponent) for (base,) in flat]
    else:
        values = [square(hash((operation, term.attributes, *place)) % PRIME) for place in flat]
        values = values if exponent is None else [_power(base, exponent) for base in values]
    return None if None in values else np.array(values, dtype=object).reshape(shape)


def _power(base: int, exponent: object) -> int | None:
    """``base ** exponent``. What has no root has a number of its own as its root: of equal values equal ones."""
    if not isinstance(exponent, Fraction) or (base == 0 and exponent <= 0):
        return None
    whole, rest = divmod(exponent, 1)
    result = pow(base, whole, PRIME)
    if rest and pow(base, ORDER, PRIME) == 1 and rest.denominator % ORDER:
        return result * pow(base, rest.numerator * pow(rest.denominator, -1, ORDER) % ORDER, PRIME) % PRIME
    return result * square(hash((base, rest)) % PRIME) % PRIME if rest else result
