"""Numbers written as elements of a counter, so that a comparison with each of them is one comparison with all of them.

``chosen == 3`` of places below 8 compares with element 3 of the counter to 8; on the ranks ``chosen == 2 * rank + 1``
compares with the element of digits (rank, 1). Then experts that are computed one by one are those of a dimension.
"""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, IOTA, iota, open_view
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.size import product
from verifycompile.ir.term import CONSTANT, UNIT, Digit, View
from verifycompile.rewrites.builder import Builder


def number_of_places(view: View) -> int | None:
    """The size of the dimension of which all elements are places; None where there is no such dimension."""
    if view.coefficient != 1 or not view.term.operation.places:
        return None
    (core,) = view.term.cores
    size = product(view.term.index_sizes[i] for i in core)
    return size if isinstance(size, int) else None


def smallest_and_largest(view: View) -> tuple[Fraction, Fraction] | None:
    """Of a counter, or of a constant, the smallest element and the largest one."""
    found = _digits(view)
    if found is None:
        return None
    constant, digits = found
    largest = constant
    for weight, (_, _, size) in digits:
        if not isinstance(size, int):
            return None
        largest += weight * (size - 1)
    return Fraction(constant), Fraction(largest)


def equal_numbers(b: Builder, left: View, right: View) -> View:
    """``left == right``, where a number that is compared with places is written as an element of their counter."""
    for key, number in ((left, right), (right, left)):
        size = number_of_places(key)
        counted = as_element(b, number, size) if size is not None else None
        if counted is not None:
            return b.equal(key, counted)
    return b.equal(left, right)


def as_element(b: Builder, number: View, size: int) -> View | None:
    """A constant, or a sum of counters that are digits of numbers below ``size``, as an element of ``arange(size)``."""
    found = _digits(number)
    if found is None or size == 1:
        return None
    constant, digits = found
    level, axis = size, list[Digit]()
    for weight, (dim, divisor, extent) in sorted(digits, reverse=True):
        span = weight * extent
        if level % span != 0 or constant // span >= level // span or constant % span >= weight:
            return None
        axis.append((CONSTANT, constant // span, level // span))
        axis.append((dim, divisor, extent))
        constant, level = constant % span, weight
    if constant >= level:
        return None
    axis.append((CONSTANT, constant, level))
    return View(ONE, iota(b.pool, size).term, number.shape, (merge_digits(axis),))


def _digits(view: View) -> tuple[int, list[tuple[int, Digit]]] | None:
    """A number that is not negative as a constant, and digits with the weight of each."""
    factor = view.coefficient
    if not isinstance(factor, Fraction) or factor.denominator != 1 or factor < 0:
        return None
    if view.term.operation is UNIT:
        return int(factor), []
    if view.term.operation is COMBINE:
        constant, digits = 0, list[tuple[int, Digit]]()
        for part in open_view(view).operands:
            found = _digits(part.scaled(factor))
            if found is None:
                return None
            constant += found[0]
            digits += found[1]
        return constant, digits
    if view.term.operation is not IOTA:
        return None
    constant, digits, weight = 0, [], int(factor)
    for dim, divisor, size in reversed(view.axes[0]):
        if not isinstance(size, int) or not isinstance(divisor, int):
            return None
        if dim == CONSTANT:
            constant += weight * divisor
        else:
            digits.append((weight, (dim, divisor, size)))
        weight *= size
    return constant, digits
