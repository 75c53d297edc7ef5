"""Sums under comparisons with a place, such as look-ups and running sums: slices of them, and zeros around them.

The place is moved in the comparison: what lies three places further on is the sum up to three places less.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, Opened, combine, contract, iota, open_view
from verifycompile.ir.indicator import EQUAL, equal
from verifycompile.ir.inequality import AT_MOST, whole_at_most
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.size import Size, normalize_size, product
from verifycompile.ir.term import TermPool, View


def narrowed_sum(pool: TermPool, view: View, dim: int, start: Size, length: Size) -> View | None:
    """``length`` places of ``dim`` from ``start`` on; None for any other sum."""
    opened = _bounded(view, dim)
    if opened is None or not isinstance(start, int):
        return None
    return _moved_sum(pool, view, opened, dim, start, length)


def padded_sum(pool: TermPool, view: View, dim: int, start: Size, total: Size) -> View | None:
    """The sum with zeros around it, where the comparisons hold nowhere at their places; None for any other one."""
    opened, size = _bounded(view, dim), view.shape[dim]
    if opened is None or not isinstance(start, int) or not isinstance(size, int):
        return None
    after = normalize_size(total - start - size)
    for first, length in ((-start, start), (size, after)):
        masks = [_moved_mask(pool, v, dim, first, length) for v in opened.operands if v.uses(dim)] if length else []
        if length and not any(mask is not None and mask.is_zero for mask in masks):
            return None
    return _moved_sum(pool, view, opened, dim, -start, total)


def _bounded(view: View, dim: int) -> Opened | None:
    """The factors of a sum of which comparisons alone depend on ``dim``."""
    if view.term.operation is not CONTRACT:
        return None
    opened = open_view(view)
    return opened if all(v.term.operation in (AT_MOST, EQUAL) or not v.uses(dim) for v in opened.operands) else None


def _moved_sum(pool: TermPool, view: View, opened: Opened, dim: int, start: int, length: Size) -> View | None:
    operands: list[View] = []
    for operand in opened.operands:
        moved = _moved_mask(pool, operand, dim, start, length) if operand.uses(dim) else _sized(operand, dim, length)
        if moved is None:
            return None
        operands.append(moved)
    labels = tuple(range(len(opened.shape)))
    inputs = tuple(labels for _ in operands)
    pool.lemma_trace.append(("slice-of-operands", repr(view.term)))
    result = contract(pool, operands, inputs, labels[: view.rank], frozenset(opened.summed))
    return dataclasses.replace(result.scaled(view.coefficient), shape=_shape(view, dim, length))


def _moved_mask(pool: TermPool, mask: View, dim: int, start: int, length: Size) -> View | None:
    """A comparison over ``length`` places of ``dim``, the first of which is what ``start`` was."""
    if mask.term.operation is EQUAL:
        return _moved_equation(pool, mask, dim, start, length)
    left, right = (_moved_number(pool, v, dim, start, length) for v in open_view(mask).operands)
    if left is None or right is None:
        return None
    (constant,) = mask.term.attributes
    assert isinstance(constant, int)
    return whole_at_most(pool, left, combine(pool, [right, pool.constant(Fraction(constant), right.shape)]))


def _moved_equation(pool: TermPool, mask: View, dim: int, start: int, length: Size) -> View | None:
    """``x == place`` as ``x - start == place``; zero where one side is always the smaller one."""
    operands = open_view(mask).operands
    for index, own in (operands, operands[::-1]):
        counter = _moved_number(pool, own, dim, 0, length)
        if index.uses(dim) or counter is None:
            continue
        shape = counter.shape
        moved = combine(pool, [_sized(index, dim, length), pool.constant(Fraction(-start), shape)])
        bounds = [whole_at_most(pool, *sides) for sides in ((moved, counter), (counter, moved))]
        return pool.zero(shape) if any(b is not None and b.is_zero for b in bounds) else equal(pool, moved, counter)
    return None


def _moved_number(pool: TermPool, view: View, dim: int, start: int, length: Size) -> View | None:
    shape = _shape(view, dim, length)
    if not view.uses(dim):
        return _sized(view, dim, length)
    if view.term.operation is COMBINE:
        operands = [_moved_number(pool, v, dim, start, length) for v in open_view(view).operands]
        found = [operand for operand in operands if operand is not None]
        return combine(pool, found) if len(found) == len(operands) else None
    if view.term.operation is not IOTA:
        return None
    weight: Size = 1
    summands: list[View] = []
    for place, divisor, size in reversed(view.axes[0]):
        scale = as_scalar(weight)
        if place != dim:
            summands.append(View(scale, iota(pool, size).term, shape, (((place, divisor, size),),)))
        elif size == view.shape[dim]:
            counter = iota(pool, length)
            axes = tuple(((dim, 1, length),) for _ in counter.axes)
            summands.append(View(counter.coefficient, counter.term, shape, axes).scaled(scale))
            summands.append(pool.constant(Fraction(start), shape).scaled(scale))
        else:
            return None
        weight = product((weight, size))
    return combine(pool, summands).scaled(view.coefficient)


def _sized(view: View, dim: int, length: Size) -> View:
    return dataclasses.replace(view, shape=_shape(view, dim, length))


def _shape(view: View, dim: int, length: Size) -> tuple[Size, ...]:
    return (*view.shape[:dim], length, *view.shape[dim + 1 :])
