"""Equality of two values as polynomials: products distributed over sums, sums over indices taken of each product.

Normal form keeps products of sums as the program wrote them, since to expand them all would cost too much. Here two
values that ought to be equal are expanded, down to what is neither a sum nor a product, and compared one by one.
Every product is brought to normal form. More products than a limit are left to others.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from verifycompile.ir.algebra import COMBINE, CONTRACT, contract, has_infinity, open_view
from verifycompile.ir.build import ShapeError
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import ONE, NonFiniteScalarError, Scalar, add, multiply
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, Axis, Term, TermPool, View

_MAX_PRODUCTS = 256
_MAX_FACTORS = 32

Products = dict[tuple[Term, tuple[Axis, ...]], Scalar]


class _TooLargeError(Exception):
    """More products than anyone wants to wait for."""


@dataclasses.dataclass(frozen=True)
class _Product:
    """``coefficient`` times the product of ``factors``, summed over the dimensions that ``shape`` has at its end."""

    coefficient: Scalar
    factors: tuple[View, ...]
    shape: tuple[Size, ...]


def same_products(pool: TermPool, left: View, right: View) -> bool:
    """Whether two views of one shape are the same sum of products; False where that is not found."""
    if left.shape != right.shape:
        return False
    try:
        found = _expanded(pool, left)
        return found is not None and found == _expanded(pool, right)
    except (_TooLargeError, NonFiniteScalarError, ShapeError, UnalignedError):
        return False


def _expanded(pool: TermPool, view: View) -> Products | None:
    """Products in normal form with their coefficients; None where one is infinite by construction."""
    result: Products = {}
    for part in _products(view):
        if any(has_infinity(factor) for factor in part.factors):
            return None
        labels = tuple(range(len(part.shape)))
        free, bound = labels[: view.rank], frozenset(labels[view.rank :])
        factors = part.factors or (pool.constant(ONE, part.shape),)
        value = contract(pool, factors, tuple(labels for _ in factors), free, bound).scaled(part.coefficient)
        key = value.term, value.axes
        result[key] = add(result[key], value.coefficient) if key in result else value.coefficient
    return {key: coefficient for key, coefficient in result.items() if coefficient != 0}


def _products(view: View) -> list[_Product]:
    """The view as a sum of products, over its own dimensions and bound ones behind them."""
    if view.term.operation is COMBINE:
        parts = [p for operand in open_view(view).operands for p in _products(operand.scaled(view.coefficient))]
        return _limited(parts)
    if view.term.operation is not CONTRACT:
        return [_Product(view.coefficient, (view.unscaled(),), view.shape)]
    opened = open_view(view)
    result = [_Product(view.coefficient, (), opened.shape)]
    for operand in opened.operands:
        expanded = _products(dataclasses.replace(operand, shape=opened.shape))
        result = _limited(list(_pairs(result, expanded, len(opened.shape))))
    return result


def _limited(products: list[_Product]) -> list[_Product]:
    if len(products) > _MAX_PRODUCTS or any(len(p.factors) > _MAX_FACTORS for p in products):
        raise _TooLargeError
    return products


def _pairs(left: list[_Product], right: list[_Product], shared: int) -> Iterator[_Product]:
    """All products of two sums over ``shared`` dimensions; bound ones stay apart."""
    for first, second in itertools.product(left, right):
        more = len(first.shape) - shared
        shape = (*first.shape, *second.shape[shared:])
        factors = (
            *(dataclasses.replace(factor, shape=shape) for factor in first.factors),
            *(_moved(factor, shared, more, shape) for factor in second.factors),
        )
        yield _Product(multiply(first.coefficient, second.coefficient), factors, shape)


def _moved(view: View, shared: int, by: int, shape: tuple[Size, ...]) -> View:
    """The view with its dimensions from ``shared`` on moved behind those of another product."""
    axes = tuple(
        tuple(d if d[0] == CONSTANT or d[0] < shared else (d[0] + by, d[1], d[2]) for d in axis) for axis in view.axes
    )
    return View(view.coefficient, view.term, shape, axes)
