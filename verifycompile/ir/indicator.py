"""Indicators: terms whose elements are 0 or 1, so that masks and lookups are products and sums.

A comparison is an indicator, "and" is a product, "or" is the negation of a product of negations. An embedding or a
gather is a contraction with ``equal(index, iota)``, the one-hot form of the index (DESIGN section 5).
"""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, elementwise, iota, multiply_views, open_view
from verifycompile.ir.inequality import AT_MOST, turned_round, whole_at_most
from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.scalar import ONE, ZERO, as_scalar
from verifycompile.ir.size import product
from verifycompile.ir.term import UNIT, Operation, Term, TermPool, View
from verifycompile.ir.term_property import TermProperty

EQUAL = Operation("equal", commutative=True, indicator=True)
LESS = Operation("less", indicator=True)
LESS_EQUAL = Operation("less_equal", indicator=True)
NOT = Operation("not", indicator=True)


def is_indicator(view: View) -> bool:
    """Whether every element is 0 or 1 by construction."""
    if view.is_zero:
        return True
    return view.coefficient == 1 and _INDICATOR(view.term)


def _is_indicator(term: Term) -> bool:
    if term.operation is not CONTRACT and not term.operation.copies:
        return term.operation.indicator or term.operation is UNIT
    return all(is_indicator(operand) for operand in term.operands) and (not term.summed or _is_met_once(term))


def _is_met_once(term: Term) -> bool:
    from verifycompile.ir.met_once import is_met_once  # here, because few indices are those that a sort found

    return is_met_once(term)


_INDICATOR = TermProperty(lambda term: term.operation is CONTRACT or term.operation.copies, _is_indicator)


def equal(pool: TermPool, left: View, right: View) -> View:
    """``left == right``; a value that is 0 or 1 compared with such a number is itself or its negation."""
    moved = None if pool.piecewise is None else pool.piecewise.pointwise(pool, equal, (left, right))
    if moved is not None:
        return moved
    left, right = _turned(*_of_counters_on_one_side(pool, left, right))
    result = elementwise(pool, EQUAL, (), (left, right))
    if left.term is right.term is pool.unit and all(isinstance(v.coefficient, Fraction) for v in (left, right)):
        return pool.constant(ONE if left.coefficient == right.coefficient else ZERO, result.shape)
    if is_indicator(left) and is_indicator(right):
        return both(pool, implies(pool, left, right), implies(pool, right, left))
    if _never_equal(pool, left, right) or _never_equal(pool, right, left):
        pool.lemma_trace.append(("no-such-position", ""))
        return pool.zero(result.shape)
    return result


def _of_counters_on_one_side(pool: TermPool, left: View, right: View) -> tuple[View, View]:
    """``x - n r == i``, where i counts n places, is ``x == n r + i``: a place in a shard is one in the whole table."""
    for value, counter in ((left, right), (right, left)):
        if counter.term.operation is not IOTA or counter.coefficient != 1 or value.term.operation is not COMBINE:
            continue
        digits, rest = counter.axes[0], [v.scaled(value.coefficient) for v in open_view(value).operands]
        size = counter.term.index_sizes[0]
        while True:
            upper = next((v for v in rest if v.term.operation is IOTA and v.coefficient == -as_scalar(size)), None)
            if upper is None or {d for d, _, _ in upper.axes[0]} & {d for d, _, _ in digits}:
                break
            rest.remove(upper)
            digits, size = (*upper.axes[0], *digits), product((upper.term.index_sizes[0], size))
        if digits != counter.axes[0] and rest:
            shape = elementwise(pool, EQUAL, (), (left, right)).shape
            pool.lemma_trace.append(("place-in-whole", ""))
            place = View(ONE, iota(pool, size).term, shape, (merge_digits(digits),))
            return combine(pool, rest), place
    return left, right


def _never_equal(pool: TermPool, counter: View, number: View) -> bool:
    """Whether the number is none of those that the counter counts: -100 is no position."""
    if counter.term.operation is not IOTA or counter.coefficient != 1 or number.term is not pool.unit:
        return False
    value, size = number.coefficient, counter.term.index_sizes[0]
    if not isinstance(value, Fraction):
        return False
    return value < 0 or value.denominator != 1 or (isinstance(size, int) and value >= size)


def less(pool: TermPool, left: View, right: View) -> View:
    """``left < right``; between whole numbers ``left <= right - 1``."""
    moved = None if pool.piecewise is None else pool.piecewise.pointwise(pool, less, (left, right))
    if moved is not None:
        return moved
    if is_indicator(left) and is_indicator(right):
        return both(pool, negate(pool, left), right)
    whole = whole_at_most(pool, left, right, strict=True)
    return elementwise(pool, LESS, (), _turned(left, right)) if whole is None else whole


def less_equal(pool: TermPool, left: View, right: View) -> View:
    moved = None if pool.piecewise is None else pool.piecewise.pointwise(pool, less_equal, (left, right))
    if moved is not None:
        return moved
    if is_indicator(left) and is_indicator(right):
        return implies(pool, left, right)
    whole = whole_at_most(pool, left, right)
    return elementwise(pool, LESS_EQUAL, (), _turned(left, right)) if whole is None else whole


def _turned(left: View, right: View) -> tuple[View, View]:
    """``b`` and ``a`` for ``-a`` and ``-b``, which compare alike; also where one of them is a number."""
    values = [v.coefficient for v in (left, right) if v.term.operation is not UNIT]
    turns = all(isinstance(c, Fraction) and c < 0 for c in values)
    return (right.scaled(-ONE), left.scaled(-ONE)) if turns else (left, right)


def negate(pool: TermPool, view: View) -> View:
    """1 - view for an indicator. Comparisons over a total order turn round, double negations vanish."""
    if not is_indicator(view):
        raise ValueError("negation of a value that is not an indicator")
    if view.term is pool.unit:
        return pool.constant(1 - view.coefficient, view.shape)
    moved = None if pool.piecewise is None else pool.piecewise.pointwise(pool, negate, (view,))
    if moved is not None:
        return moved
    term = view.term
    if term.operation is AT_MOST:
        return turned_round(pool, view)
    if term.operation in (NOT, LESS, LESS_EQUAL):
        operands = open_view(view).operands
        if term.operation is NOT:
            return operands[0]
        opposite = LESS_EQUAL if term.operation is LESS else LESS
        return elementwise(pool, opposite, (), (operands[1], operands[0]))
    return elementwise(pool, NOT, (), (view,))


def both(pool: TermPool, left: View, right: View) -> View:
    return multiply_views(pool, left, right)


def implies(pool: TermPool, left: View, right: View) -> View:
    return negate(pool, multiply_views(pool, left, negate(pool, right)))


def either(pool: TermPool, left: View, right: View) -> View:
    return negate(pool, multiply_views(pool, negate(pool, left), negate(pool, right)))
