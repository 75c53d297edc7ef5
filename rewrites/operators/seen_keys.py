"""Rows whose mask is read from data, as that of a cache which is filled up to a position."""

from __future__ import annotations

from verifycompile.ir.algebra import CONTRACT
from verifycompile.ir.exponential import is_positive
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.side_conditions.formula import both, implies
from verifycompile.rewrites.side_conditions.index_arithmetic import Translator, UntranslatableError
from verifycompile.rewrites.side_conditions.solver import holds


def sees_first_key(pool: TermPool, total: View) -> bool:
    """Whether z3 proves that a sum under masks has its first summand everywhere, and so is positive.

    If need be, for every value that an operator of the spec takes without error; that is listed as an assumption.
    """
    masks = [v for v in total.term.operands if not is_positive(v)]
    if total.coefficient != 1 or total.term.operation is not CONTRACT or not all(map(is_indicator, masks)):
        return False
    translator = Translator(pool.facts)
    try:
        claim = both(*(translator.truth(mask) for mask in masks))
    except UntranslatableError:
        return False
    first = [translator.index(dim) == 0 for dim in total.term.summed_indices]
    given = both(*translator.given.values(), *first)
    if not holds(implies(given, claim), translator.indices, total.term.index_sizes):
        return False
    pool.assumptions.update(dict.fromkeys(translator.sources))
    return True
