"""The sum of a one-hot row: the gradient of a cross entropy subtracts the softmax as often as the row sums to one.

That it does so is a fact about the target, which the loss demands; what uses the fact lists it as an assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.term import TermPool, View, facts_of
from verifycompile.ir.whole_dims import whole_dim
from verifycompile.rewrites.finders.finder import ProductFinder, Proposal, whole_view
from verifycompile.rewrites.lemmas.indicators import COUNT_OR, LOOK_UP
from verifycompile.rewrites.lemmas.substitution import Substitution


def _one_hot_rows(pool: TermPool, factors: Sequence[View], free: int) -> Iterator[Proposal]:
    """The sum over v of ``x == v``, of an index x of which something is known."""
    for factor in factors:
        found = _summed_row(factor)
        if found is None:
            continue
        index, row = found
        indices = {"j": (row,)}
        if index.term in pool.facts or index.term.operation is COMBINE:
            yield Proposal(LOOK_UP, Substitution({"n": (index,), "a": ()}, indices=indices), (factor,))
        for fact in facts_of(pool.facts, index):
            if fact.exception is not None:
                numbers = {"p": as_scalar(fact.exception)}
                yield Proposal(COUNT_OR, Substitution({"n": (index,)}, numbers, indices), (factor,))


def _summed_row(view: View) -> tuple[View, int] | None:
    """``(x, v)`` where the view is the sum over v of ``x == v`` for all v of a table."""
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
            return whole_view(index, view.shape), row
    return None


one_hot_rows = ProductFinder(_one_hot_rows)
