"""Sums of which at most one summand is not zero: a place is looked for among places of which no two are equal."""

from __future__ import annotations

from verifycompile.ir.algebra import open_view
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.term import CONSTANT, Term, View, identity_view


def is_found_once(index: View, dim: int) -> bool:
    """Whether the elements of ``index`` along ``dim`` are places that a sort found, of which no two are equal."""
    if not index.term.operation.distinct or index.coefficient != 1:
        return False
    (fresh,) = index.term.fresh
    others = [digit for number, axis in enumerate(index.axes) if number != fresh for digit in axis]
    own = [digit for digit in index.axes[fresh] if digit[0] != CONSTANT]
    return own == [(dim, 1, index.shape[dim])] and all(digit[0] != dim for digit in others)


def is_met_once(contraction: Term) -> bool:
    """Whether the contraction sums over one dimension, along which a lookup in its product is met once at most."""
    opened = open_view(identity_view(contraction))
    return len(opened.summed) == 1 and any(_is_met_once(factor, opened.summed[0]) for factor in opened.operands)


def _is_met_once(factor: View, dim: int) -> bool:
    if factor.term.operation is not EQUAL or factor.coefficient != 1:
        return False
    left, right = open_view(factor).operands
    return any(is_found_once(i, dim) and not other.uses(dim) for i, other in ((left, right), (right, left)))
