"""Validity of views: what every pass of the engine must leave true, checked after it in tests.

A view that breaks one of these rules has no meaning, or one that depends on how it was built. The checks are
exact for sizes that are integers, and hold for every value of the symbols for those that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import sympy

from verifycompile.ir.relabel import merge_digits
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import CONSTANT, Axis, View

Where = Callable[[], str]
"""Says which view or term is checked; texts are made for errors only."""


class InvalidTermError(ValueError):
    """A view or a term that breaks a rule of the IR. The message names the rule and shows the culprit."""


def validate(view: View) -> None:
    """Check a view against its term. Raises InvalidTermError."""

    def where() -> str:
        return printer().show(view)

    check_sizes(view.shape, where)
    check_axes(view.axes, view.term.shape, view.shape, where)


def printer() -> ModuleType:
    from verifycompile.ir import printer as found  # here: for messages alone

    return found


def spelled(axis: Axis) -> str:
    return printer().describe_axis(axis)


# ------------------------------------------------------------------------------------------------ the rules


def check_sizes(sizes: Sequence[Size], where: Where) -> None:
    for size in sizes:
        if isinstance(size, sympy.Expr):
            if size.is_Integer:
                raise InvalidTermError(f"{where()}: the size {size} is an integer written as an expression")
        elif size < 0:
            raise InvalidTermError(f"{where()}: the size {size} is negative")


def check_axes(axes: Sequence[Axis], sizes: Sequence[Size], shape: Sequence[Size], where: Where) -> None:
    """Digits over dimensions of ``shape`` spell an index of every axis, once."""
    if len(axes) != len(sizes):
        raise InvalidTermError(f"{where()}: {len(axes)} axes are indexed where the term has {len(sizes)}")
    for number, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        if axis != merge_digits(axis):
            raise InvalidTermError(f"{where()}: axis {number} is not in canonical form: {spelled(axis)}")
        if not equal_sizes(product(digit[2] for digit in axis), size):
            raise InvalidTermError(f"{where()}: the digits {spelled(axis)} do not cover axis {number} of size {size}")
        for dim, divisor, extent in axis:
            if dim == CONSTANT:
                if isinstance(divisor, int) and isinstance(extent, int) and not 0 <= divisor < extent:
                    outside = f"the constant {divisor} is outside of axis {number}, {spelled(axis)}"
                    raise InvalidTermError(f"{where()}: {outside}")
            elif not 0 <= dim < len(shape):
                raise InvalidTermError(f"{where()}: axis {number} reads dimension {dim} of {len(shape)}")
            elif shape[dim] != 0 and exact_quotient(shape[dim], product((divisor, extent))) is None:
                raise InvalidTermError(
                    f"{where()}: the digit {spelled(axis)} does not divide dimension {dim} of size {shape[dim]}"
                )


def equal_sizes(left: Size, right: Size) -> bool:
    return left == right or exact_quotient(left, right) == 1
