"""Reductions other than sums: extremes, norms, logical reductions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch

from verifycompile.ir import indicator, relabel
from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, elementwise, has_infinity, multiply_views, open_view
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import (
    EXPONENTIAL,
    LOGARITHM,
    MAXIMUM,
    POWER,
    REDUCE_MAX,
    REDUCE_MIN,
    is_positive,
    may_be_lowest,
)
from verifycompile.ir.pieces import concatenated_dim, pieces_of
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import ONE
from verifycompile.ir.sign import is_nonnegative, is_positive_sum
from verifycompile.ir.term import CONSTANT, Operation, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.extreme_places import OTHER_END, first_of_best
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

EXTREMES = {"max": REDUCE_MAX, "min": REDUCE_MIN}
TRUTH_EXTREMES = {
    "max": Operation("reduce_any", indicator=True),
    "min": Operation("reduce_all", indicator=True),
}
"""Extremes of values that are 0 or 1."""
_INCREASING = [FUNCTIONS[name] for name in ("atan", "erf", "sigmoid", "sinh", "tanh")]
_OPENED = (COMBINE, EXPONENTIAL, LOGARITHM, POWER, *_INCREASING)
PRODUCT = Operation("reduce_product")
_LONGEST_PRODUCT = 64


def reduce_extreme(pool: TermPool, view: View, dims: Sequence[int], kind: str) -> View:
    """Largest or smallest element over ``dims``, which are dropped. Extremes of extremes are merged.

    That of an increasing function of a value is the function of the value's, of a decreasing one that of its other end.
    """
    outside = _taken_out(pool, view, dims, kind)
    if outside is None and kind == "min":
        outside = first_of_best(pool, view, dims, reduce_extreme)
    if outside is not None:
        return outside
    dim = concatenated_dim(view)
    pairwise = MAXIMUM if kind == "max" else MINIMUM
    if dim is not None and dim in dims:
        parts = [reduce_extreme(pool, piece, dims, kind) for piece in pieces_of(view, dim)]
        return functools.reduce(lambda left, right: elementwise(pool, pairwise, (), (left, right)), parts)
    if view.term.operation is pairwise and view.coefficient == 1:
        parts = [reduce_extreme(pool, operand, dims, kind) for operand in open_view(view).operands]
        return elementwise(pool, pairwise, (), parts)
    if view.term.operation is indicator.NOT and view.coefficient == 1:
        # Some element is not in the set where not all are.
        (inner,) = open_view(view).operands
        return indicator.negate(pool, reduce_extreme(pool, inner, dims, OTHER_END[kind]))
    of_indicators = indicator.is_indicator(view) and not view.is_zero
    return _reduced(pool, (TRUTH_EXTREMES if of_indicators else EXTREMES)[kind], view, dims)


def _taken_out(pool: TermPool, view: View, dims: Sequence[int], kind: str) -> View | None:
    """The extreme of what is within a multiple, a sum with what is the same over ``dims``, an exponential."""
    if view.is_zero or indicator.is_indicator(view):
        return None
    if view.coefficient != 1:
        if not isinstance(view.coefficient, Fraction):
            return None
        of_unscaled = kind if view.coefficient > 0 else OTHER_END[kind]
        return reduce_extreme(pool, view.unscaled(), dims, of_unscaled).scaled(view.coefficient)
    kept = [d for d in range(view.rank) if d not in set(dims)]
    operands = open_view(view).operands if view.term.operation in _OPENED else ()
    if view.term.operation is COMBINE:
        same = [v for v in operands if _is_same(v, dims)]
        rest = [v for v in operands if v not in same]
        if not same or not rest:
            return None
        inner = reduce_extreme(pool, combine(pool, rest), dims, kind)
        return combine(pool, [inner, *(_restrict(v, kept) for v in same)])
    if view.term.operation is CONTRACT and not view.term.summed:
        factors = open_view(view).operands
        same = [v for v in factors if _is_same(v, dims) and is_nonnegative(v)]
        rest = [v for v in factors if v not in same]
        if not same or not rest:
            return None
        inner = reduce_extreme(pool, multiply_views(pool, *rest), dims, kind)
        return multiply_views(pool, inner, *(_restrict(v, kept) for v in same))
    b = Builder(pool)
    for inner in operands:
        if view.term.operation in _INCREASING:
            return b.pointwise(view.term.operation, reduce_extreme(pool, inner, dims, kind))
        if view.term.operation is EXPONENTIAL:
            return b.exp(reduce_extreme(pool, inner, dims, kind))
        if view.term.operation is LOGARITHM and is_positive(inner):
            return b.log(reduce_extreme(pool, inner, dims, kind))
        exponent = view.term.attributes[0] if view.term.operation is POWER else None
        if isinstance(exponent, Fraction) and (is_nonnegative(inner) if exponent > 0 else is_positive_sum(inner)):
            return b.power(reduce_extreme(pool, inner, dims, kind if exponent > 0 else OTHER_END[kind]), exponent)
    return None


def _is_same(view: View, dims: Sequence[int]) -> bool:
    """Whether a value is one number for all elements over ``dims``, and no infinite one."""
    return not (any(view.uses(d) for d in dims) or has_infinity(view) or may_be_lowest(view))


def reduce_product(pool: TermPool, view: View, dims: Sequence[int]) -> View:
    """Product of the elements over ``dims``, which are dropped. Products of products are merged."""
    repeated = [view.shape[d] for d in dims if not view.uses(d)]
    reduced = _reduced(pool, PRODUCT, view, dims)
    for count in repeated:
        if not isinstance(count, int) or count > _LONGEST_PRODUCT:
            raise UnalignedError("the product of many equal elements")
        reduced = multiply_views(pool, *[reduced] * count) if count else pool.constant(ONE, reduced.shape)
    return reduced


def _reduced(pool: TermPool, operation: Operation, view: View, dims: Sequence[int]) -> View:
    """A reduction by an associative and commutative operation, over the dimensions that ``view`` uses."""
    bound = [d for d in sorted(dims) if view.uses(d)]
    kept = [d for d in range(view.rank) if d not in set(dims)]
    shape = tuple(view.shape[d] for d in kept)
    if not bound:
        return _restrict(view, kept)
    whole = [d for d in bound if _uses_wholly(view, d)]
    if len(whole) != len(bound):
        raise UnalignedError("a reduction over a dimension that is used in part")
    inner, labels = view, tuple(range(view.rank))
    summed = set(bound)
    if view.term.operation is operation and view.coefficient == 1:
        opened = open_view(view)
        inner, labels = opened.operands[0], tuple(range(len(opened.shape)))
        summed |= set(opened.summed)
    result = apply(pool, operation, (), (inner,), Signature((labels,), tuple(kept), frozenset(summed)))
    return View(result.coefficient, result.term, shape, result.axes)


def _restrict(view: View, kept: Sequence[int]) -> View:
    for d in sorted(set(range(view.rank)) - set(kept), reverse=True):
        view = relabel.remove_dim(view, d)
    return view


def _uses_wholly(view: View, dim: int) -> bool:
    digits = {digit for axis in view.axes for digit in axis if digit[0] == dim and digit[0] != CONSTANT}
    covered = 1
    for _, _, size in digits:
        covered = covered * size
    return covered == view.shape[dim]


def reduced_over(
    b: Builder,
    view: View,
    reduce: Callable[[TermPool, View, Sequence[int]], View],
    dims: Sequence[int] | int | None,
    keepdim: bool,
) -> View:
    """A reduction over tensor dimensions, all of them for None or an empty list."""
    positions = sorted(b.dims(view, dims))
    result = reduce(b.pool, view, positions)
    if keepdim:
        for position in positions:
            result = relabel.insert_dim(result, position)
    return result


def extreme(b: Builder, view: View, dims: Sequence[int] | int | None, keepdim: bool, kind: str) -> View:
    return reduced_over(b, view, functools.partial(reduce_extreme, kind=kind), dims, keepdim)


@operator(aten.amax.default)
def amax(b: Builder, self: View, dim: Sequence[int], keepdim: bool) -> View:
    return extreme(b, self, list(dim), keepdim, "max")


@operator(aten.amin.default)
def amin(b: Builder, self: View, dim: Sequence[int], keepdim: bool) -> View:
    return extreme(b, self, list(dim), keepdim, "min")


@operator(aten.max.default)
def max_all(b: Builder, self: View) -> View:
    return extreme(b, self, None, False, "max")


@operator(aten.min.default)
def min_all(b: Builder, self: View) -> View:
    return extreme(b, self, None, False, "min")
