"""What the summands of a sum have in common: powers of positive values, their denominators included."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, EXPONENTIAL, combine, elementwise, multiply_views, open_view
from verifycompile.ir.exponential import POWER, is_positive, product_factors
from verifycompile.ir.scalar import ONE, ZERO, Scalar, multiply
from verifycompile.ir.term import TermPool, View


def common_factors(pool: TermPool, view: View) -> list[View] | None:
    """``exp(c) a + exp(c) b`` as ``exp(c)`` and ``a + b``, ``1 + a / b`` as ``1 / b`` and ``b + a``; else None.

    ``view``: a sum.
    """
    parts = open_view(view).operands
    lowest = _lowest_powers(parts)
    if not lowest:
        return None
    outside = [power_of(pool, key, exponent) for key, exponent in lowest.items()]
    inverse = [power_of(pool, key, multiply(exponent, -ONE)) for key, exponent in lowest.items()]
    inner = combine(pool, [multiply_views(pool, part, *inverse) for part in parts])
    if inner.term.operation is COMBINE and _lowest_powers(open_view(inner).operands):
        return None  # nothing is gained where the summands still have something in common
    found = product_factors(pool, inner)
    return None if found is None else [*found, *outside]


def _lowest_powers(parts: Sequence[View]) -> dict[tuple[bool, View], Scalar]:
    """What all summands have in common: bases with the lowest of their exponents, unless that is zero."""
    powers = [powers_of(part) for part in parts]
    lowest: dict[tuple[bool, View], Scalar] = {}
    for key in {key: None for found in powers for key in found}:
        least = min((found.get(key, ZERO) for found in powers), key=lambda e: e)
        if least != 0:
            lowest[key] = least
    return lowest


def powers_of(view: View) -> dict[tuple[bool, View], Scalar]:
    """Factors that are powers of positive values, as base and exponent; ``True`` stands before an exponential's."""
    plain = view.term.operation is CONTRACT and not view.term.summed
    found: dict[tuple[bool, View], Scalar] = {}
    for factor in open_view(view).operands if plain else (view.unscaled(),):
        if factor.term.operation is EXPONENTIAL:
            (argument,) = open_view(factor).operands
            key, exponent = (True, argument.unscaled()), argument.coefficient
        elif factor.term.operation is POWER:
            (base,) = open_view(factor).operands
            if not is_positive(base):
                continue
            key, exponent = (False, base), factor.term.attributes[0]
        elif factor.term.operation is CONTRACT and factor.term.summed and is_positive(factor):
            key, exponent = (False, factor), ONE
        else:
            continue
        if isinstance(exponent, Fraction):
            found[key] = exponent
    return found


def power_of(pool: TermPool, key: tuple[bool, View], exponent: Scalar) -> View:
    is_exponential, base = key
    if is_exponential:
        return elementwise(pool, EXPONENTIAL, (), (base.scaled(exponent),))
    return base if exponent == 1 else elementwise(pool, POWER, (exponent,), (base,))
