"""Choices between values that are alike: multiples of one value, and choices in choices."""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import has_infinity, open_view
from verifycompile.ir.exponential import WHERE
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import choose


def choice_of_alike(b: Builder, condition: View, left: View, right: View) -> View:
    scaled = _scaled_choice(b, condition, left, right)
    return _nested_choice(b, condition, left, right) if scaled is None else scaled


def _nested_choice(b: Builder, condition: View, left: View, right: View) -> View:
    """A choice of which one value is a choice with the other one is one choice under both masks."""
    mask, first, second = b.aligned(condition, left, right)
    for chosen, other, name in ((first, second, "choice-in-choice"), (second, first, "choice-else-choice")):
        if chosen.term.operation is not WHERE or chosen.coefficient != 1:
            continue
        inner, then, otherwise = open_view(chosen).operands
        same, differs = (otherwise, then) if chosen is first else (then, otherwise)
        if (same.term, same.axes, same.coefficient) != (other.term, other.axes, other.coefficient):
            continue
        b.pool.lemma_trace.append((name, ""))
        both = b.mul(mask, inner) if chosen is first else b.either(mask, inner)
        return choose(b, both, *((differs, other) if chosen is first else (other, differs)))
    return b.pointwise(WHERE, condition, left, right)


def _scaled_choice(b: Builder, condition: View, left: View, right: View) -> View | None:
    """A choice between multiples of one value is that between the numbers, times the value; of other ones, a multiple.

    So the gradient of a maximum, which is halved where the operands are equal, is as linear as any other.
    """
    if b.call.dtype is None or not b.call.dtype.is_floating_point or left.term is b.pool.unit:
        return None
    scale, other = left.coefficient, right.coefficient
    if left.is_zero or not isinstance(scale, Fraction) or not isinstance(other, Fraction):
        return None
    _, first, second = b.aligned(condition, left, right)
    if has_infinity(left) or has_infinity(right):
        return None
    if first.unscaled() != second.unscaled():
        if scale == 1:
            return None
        b.pool.lemma_trace.append(("number-leaves-choice", ""))
        chosen = b.combination((other / scale, right.unscaled()))
        return b.combination((scale, choose(b, condition, left.unscaled(), chosen)))
    b.pool.lemma_trace.append(("choice-of-multiples", ""))
    return b.mul(b.combination((scale - other, condition), (other, 1)), left.unscaled())
