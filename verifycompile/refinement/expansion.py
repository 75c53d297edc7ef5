"""Sums of products written out: equality by the laws of the e-graph, decided without a search.

Both values become sums of monomials: a number, sums over named indices, and factors, all in a fixed order. Two values
that are equal by the laws VL01 to VL14 have the same monomials, and what has the same monomials is equal by them.
The checker of certificates uses this for what the e-graph found.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, UNIT, Term, View

_MAX_MONOMIALS = 4096
_MAX_BOUND = 6
_DEPTHS = (4, 8)

_Name = tuple[str, int, Size]
"""``("dim", number, size)`` or ``("bound", number, size)``."""
_Factor = tuple[int, tuple[tuple[tuple[object, ...], ...], ...]]
_Monomial = tuple[tuple[_Factor, ...], tuple[_Name, ...]]


class _TooLargeError(Exception):
    pass


def equal_when_expanded(left: View, right: View) -> bool:
    """Whether two views of equal shape have the same monomials. False where there are too many to say."""
    if left.shape != right.shape:
        return False
    for depth in _DEPTHS:
        for opaque in (_subterms(left, depth) & _subterms(right, depth), set[Term]()):
            try:
                if _expanded(left, opaque, depth) == _expanded(right, opaque, depth):
                    return True
            except _TooLargeError:
                continue
    return False


def _is_linear(term: Term) -> bool:
    return term.operation in (CONTRACT, COMBINE)


def _subterms(view: View, depth: int) -> set[Term]:
    found: set[Term] = set()
    frontier = [view.term]
    for _ in range(depth):
        frontier = [operand.term for term in frontier if _is_linear(term) for operand in term.operands]
        found.update(frontier)
    return found


def _expanded(view: View, opaque: set[Term], depth: int) -> dict[_Monomial, Fraction]:
    names: list[_Name] = [("dim", d, size) for d, size in enumerate(view.shape)]
    total: dict[_Monomial, Fraction] = {}
    for coefficient, factors, bound in _monomials(view, names, opaque - {view.term}, depth, itertools.count()):
        key = _canonical(factors, bound)
        total[key] = total.get(key, Fraction(0)) + coefficient
    return {key: value for key, value in total.items() if value != 0}


_Product = tuple[Fraction, list[_Factor], list[_Name]]


def _monomials(
    view: View, names: Sequence[_Name], opaque: set[Term], depth: int, fresh: itertools.count[int]
) -> list[_Product]:
    """The summands of a value whose dimensions are called ``names``."""
    coefficient = view.coefficient
    if not isinstance(coefficient, Fraction):
        raise _TooLargeError
    term = view.term
    if term.operation is UNIT:
        return [(coefficient, [], [])]
    if depth == 0 or not _is_linear(term) or term in opaque:
        return [(coefficient, [_factor(view, names)], [])]
    opened = open_view(view)
    bound: list[_Name] = [("bound", next(fresh), opened.shape[d]) for d in opened.summed]
    wide = [*names, *bound]
    parts = [_monomials(operand, wide, opaque, depth - 1, fresh) for operand in opened.operands]
    if term.operation is COMBINE:
        return [(coefficient * c, f, b) for part in parts for c, f, b in part]
    products: list[_Product] = [(coefficient, [], bound)]
    for part in parts:
        if len(products) * len(part) > _MAX_MONOMIALS:
            raise _TooLargeError
        products = [(c * d, [*f, *g], [*b, *e]) for c, f, b in products for d, g, e in part]
    return products


def _factor(view: View, names: Sequence[_Name]) -> _Factor:
    axes = tuple(
        tuple(("constant", d[1], d[2]) if d[0] == CONSTANT else (names[d[0]], d[1], d[2]) for d in axis)
        for axis in view.axes
    )
    return view.term.id, axes


def _canonical(factors: list[_Factor], bound: list[_Name]) -> _Monomial:
    """The product with its bound indices numbered in the way that gives the least text."""
    if len(bound) > _MAX_BOUND:
        raise _TooLargeError
    best: tuple[str, _Monomial] | None = None
    for order in itertools.permutations(bound):
        new: dict[_Name, _Name] = {name: ("bound", k, name[2]) for k, name in enumerate(order)}
        renamed = tuple(sorted((_renamed(factor, new) for factor in factors), key=repr))
        candidate: _Monomial = renamed, tuple(new.values())
        text = repr(candidate)
        if best is None or text < best[0]:
            best = text, candidate
    assert best is not None
    return best[1]


def _renamed(factor: _Factor, new: dict[_Name, _Name]) -> _Factor:
    term, axes = factor
    return term, tuple(tuple((new.get(d[0], d[0]), *d[1:]) for d in axis) for axis in axes)  # type: ignore[call-overload]
