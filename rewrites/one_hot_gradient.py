"""Lemmas on the gradient of a lookup by class: the sum of a one-hot row, and masks that join it.

The gradient of a cross entropy subtracts the softmax as often as the one-hot row of the target sums to one. That it
does so is a fact about the target, which the loss demands; a lemma that uses the fact lists it as an assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, has_infinity, multiply_views, open_view
from verifycompile.ir.indicator import EQUAL, equal, negate
from verifycompile.ir.term import IndexFact, Term, TermPool, View
from verifycompile.rewrites import formula
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.one_hot import integer_leaves, whole_dim
from verifycompile.rewrites.solver import holds


@matching_lemma("VL23", "sum-one-hot-row")
def sum_one_hot_row(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The sum over v of ``x == v`` is one, or one where x is not the exception, if x is an index of that table."""
    for factor in factors:
        index = _summed_row(factor)
        if index is None:
            continue
        for fact in pool.facts.get(index.term, ()):
            valid = _sum_of_row(fact, factor)
            if valid is None:
                continue
            pool.lemma_trace.append(("sum-one-hot-row", repr(factor.term)))
            pool.assumptions[fact.source] = None
            rest = [f for f in factors if f is not factor]
            if valid and fact.exception is not None:
                exception = pool.constant(Fraction(fact.exception), factor.shape)
                rest.append(negate(pool, equal(pool, index, exception)))
            return rest or [pool.constant(Fraction(1), factor.shape)]
    return None


def _summed_row(view: View) -> View | None:
    """``x`` where the view is the sum over v of ``x == v`` for all v of a table."""
    term = view.term
    if term.operation is not CONTRACT or term.summed != 1 or len(term.operands) != 1:
        return None
    opened = open_view(view)
    (lookup,) = opened.operands
    if lookup.term.operation is not EQUAL:
        return None
    (row,) = opened.summed
    operands = open_view(lookup).operands
    for index, counter in (operands, operands[::-1]):
        if whole_dim(counter, opened.shape) == row and not index.uses(row) and index.coefficient == 1:
            return View(index.coefficient, index.term, view.shape, index.axes)
    return None


def _sum_of_row(fact: IndexFact, row: View) -> bool | None:
    """True: the sum is one where x is not the exception; False: it is one; None: neither is proved."""
    size = row.term.index_sizes[row.term.free]
    if not isinstance(size, int):
        return None
    return _proved_sum(fact.exception, fact.size, size)


def _proved_sum(exception: int | None, table: int, size: int) -> bool | None:
    x = formula.real("x")
    within = formula.both(formula.is_integer(x), x >= 0, x < table)
    given = within if exception is None else formula.either(x == exception, within)
    found = formula.both(formula.is_integer(x), x >= 0, x < size)
    if holds(formula.implies(given, found), {}, ()):
        return False
    if exception is not None and holds(formula.implies(given, found == (x != exception)), {}, ()):
        return True
    return None


@matching_lemma("VL24", "distribute-mask")
def distribute_mask(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """``mask (a + b)`` is ``mask a + mask b`` where a holds an indicator of what the mask is about.

    The lookup in a shard is a lookup in the whole table only together with its mask.
    """
    if free != factors[0].rank:
        return None
    masks = [f for f in factors if f.term.operation.indicator]
    for total in factors:
        if total.term.operation is not COMBINE or not masks:
            continue
        subjects = {leaf.term for mask in masks for leaf in integer_leaves(mask)}
        parts = open_view(total).operands
        if not any(_reads(f, subjects) for part in parts for f in _indicators(part)):
            continue
        if any(has_infinity(part) for part in parts):
            continue
        pool.lemma_trace.append(("distribute-mask", repr(total.term)))
        others = [f for f in factors if f is not total]
        return [combine(pool, [multiply_views(pool, *others, part).scaled(total.coefficient) for part in parts])]
    return None


def _indicators(view: View) -> Iterator[View]:
    """Indicators among the factors of a product, those inside of its sums included."""
    if view.term.operation is CONTRACT:
        for operand in open_view(view).operands:
            yield from _indicators(operand)
    elif view.term.operation.indicator:
        yield view


def _reads(indicator: View, subjects: set[Term]) -> bool:
    return any(leaf.term in subjects for leaf in integer_leaves(indicator))
