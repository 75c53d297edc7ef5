"""Terms of which no element is negative because of how they were built, which what they are multiplied out to hides."""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.size import product
from verifycompile.ir.term import CONSTANT, TermPool, View


def note_sum_of_squares(pool: TermPool, view: View) -> None:
    """Note of the term of ``view`` that no element is negative, where nothing else shows it.

    ``view`` is a sum of squares, or of values of which that is known.
    """
    is_positive = isinstance(view.coefficient, Fraction) and view.coefficient > 0
    if is_positive and _reads_all(view) and not is_nonnegative(view):
        pool.noted_squares.add(view.term)


def _reads_all(view: View) -> bool:
    """Whether every element of the term is one of the view: each of its axes has dimensions of its own."""
    digits = [digit for axis in view.axes for digit in axis]
    return (
        all(dim != CONSTANT and (divisor, size) == (1, view.shape[dim]) for dim, divisor, size in digits)
        and len({dim for dim, _, _ in digits}) == len(digits)
        and all(product(d[2] for d in axis) == size for axis, size in zip(view.axes, view.term.shape, strict=True))
    )
