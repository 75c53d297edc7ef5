"""Sizes of dimensions: Python ints, or sympy expressions over positive integer symbols.

Ints take the fast path everywhere; a sympy expression appears only where a program has dynamic shapes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

import sympy

Size = int | sympy.Expr


def normalize_size(size: Size) -> Size:
    """Return an int where the expression is a known integer."""
    if isinstance(size, int):
        return size
    expanded = sympy.factor_terms(size)
    return int(expanded) if expanded.is_Integer else expanded


def product(sizes: Iterable[Size]) -> Size:
    """Product of sizes; 1 for none."""
    return normalize_size(math.prod(sizes))


def exact_quotient(numerator: Size, denominator: Size) -> Size | None:
    """Return ``numerator / denominator`` where it is an integer for every value of the symbols, else None."""
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator // denominator if denominator and numerator % denominator == 0 else None
    return _symbolic_quotient(numerator, denominator)


def quotient(numerator: Size, denominator: Size) -> Size:
    """``numerator / denominator`` where the one is a multiple of the other."""
    found = exact_quotient(numerator, denominator)
    assert found is not None, (numerator, denominator)
    return found


@functools.lru_cache(maxsize=65536)
def _symbolic_quotient(numerator: Size, denominator: Size) -> Size | None:
    found = sympy.cancel(sympy.sympify(numerator) / sympy.sympify(denominator))
    if found.is_Integer:
        return int(found)
    symbols = found.free_symbols
    if not symbols or not found.is_polynomial(*symbols):
        return None
    coefficients = sympy.Poly(found, *sorted(symbols, key=str)).coeffs()
    return found if all(c.is_Integer for c in coefficients) else None


def divisibility_chain(cuts: set[Size]) -> list[Size] | None:
    """Sort ``cuts`` so that each divides the next; None where no such order exists.

    The cuts are the positions at which mixed-radix digits of one dimension begin. An empty dimension has none.
    """
    if 0 in cuts:
        return None
    if all(isinstance(cut, int) for cut in cuts):
        ordered = sorted(cuts)
        return ordered if all(high % low == 0 for low, high in itertools.pairwise(ordered)) else None
    rest, chain = list(cuts), list[Size]()
    while rest:
        least = next((c for c in rest if all(exact_quotient(d, c) is not None for d in rest)), None)
        if least is None:
            return None
        rest.remove(least)
        chain.append(least)
    return chain
