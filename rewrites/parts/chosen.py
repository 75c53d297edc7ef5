"""Values at a chosen position: it reaches the operands of what is computed element by element.

``(q * c)[0]`` is ``q[0] * c[0]``, so that a program that computes on a piece has the value that another computes on
the whole and cuts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, combine, multiply_views, open_view
from verifycompile.ir.build import Signature, apply
from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, POWER
from verifycompile.ir.indicator import NOT, is_indicator, negate
from verifycompile.ir.inequality import AT_MOST, whole_at_most
from verifycompile.ir.pieces import opened_stack
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.rewrites.builder import Builder


def at_position(pool: TermPool, view: View) -> View:
    """The view, with the positions that are chosen in it chosen in its operands."""
    view = opened_stack(view)
    term = view.term
    chosen = any(digit[0] == CONSTANT for axis in view.axes for digit in axis)
    if not chosen or not term.operands or term.fresh or len(term.index_sizes) != term.free:
        return view
    key = ("at position", view)
    known = pool.memo.get(key)
    if known is None:
        opened = open_view(view)
        operands = [at_position(pool, operand) for operand in opened.operands]
        if term.operation is CONTRACT:
            result = multiply_views(pool, *operands)
        else:
            result = applied_anew(pool, view, operands, opened.shape, (), ())
        pool.lemma_trace.append(("slice-of-operands", repr(term)))
        known = pool.memo[key] = dataclasses.replace(result, shape=view.shape).scaled(view.coefficient)
    return known


def applied_anew(
    pool: TermPool, view: View, operands: Sequence[View], shape: tuple[Size, ...],
    summed: tuple[int, ...], cores: tuple[tuple[int, ...], ...],
) -> View:  # fmt: skip
    """The operation of ``view``, which is no product, on other operands over ``shape``, in normal form."""
    operation, attributes = view.term.operation, view.term.attributes
    if operation is COMBINE:
        return combine(pool, operands)
    if operation is AT_MOST:
        offset = pool.constant(Fraction(int(attributes[0])), shape)  # type: ignore[call-overload]  # a whole number
        found = whole_at_most(pool, operands[0], combine(pool, [operands[1], offset]))
        if found is not None:
            return found
    if operation is NOT and is_indicator(operands[0]):
        return negate(pool, operands[0])
    builder = Builder(pool)
    if operation is EXPONENTIAL:
        return builder.exp(operands[0])
    if operation is LOGARITHM:
        return builder.log(operands[0])
    if operation is POWER:
        return builder.power(operands[0], attributes[0])  # type: ignore[arg-type]  # a scalar by construction
    labels = tuple(range(len(shape)))
    signature = Signature(tuple(labels for _ in operands), labels[: view.rank], frozenset(summed), cores)
    return apply(pool, operation, attributes, operands, signature)
