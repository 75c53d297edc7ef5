"""Equality of two values element by element, where both choose between polynomials: maxima, signs, masks, choices.

Such programs write one function in many ways (a Huber loss by ``where`` or by ``clamp``, a rectifier by its mask), and
agree case by case, ties included. Both values become statements over real numbers, one for every operand that is no
such function, and the solver is asked whether they are equal for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, open_view
from verifycompile.ir.exponential import MAXIMUM, POWER, WHERE, is_positive
from verifycompile.ir.indicator import EQUAL, LESS, LESS_EQUAL, NOT, is_indicator
from verifycompile.ir.term import UNIT, Axis, Operation, Term, View
from verifycompile.refinement.closure import is_defined
from verifycompile.refinement.encoding import may_be_whole
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.side_conditions.formula import Formula, both, choose, implies, number, real, total
from verifycompile.rewrites.side_conditions.solver import Question, proved
from verifycompile.rewrites.side_conditions.trials import counterexample

_MAX_NODES = 200
_MAX_POWER = 4
_TRIALS = 16


class _NoNumberError(Exception):
    """A value of which it is not known that its elements are real numbers, or too many."""


def _truth(value: Formula) -> Formula:
    return choose(value, 1, 0)


_CHOICES: Mapping[Operation, Callable[..., Formula]] = {
    MAXIMUM: lambda a, b: choose(a < b, b, a),
    MINIMUM: lambda a, b: choose(a < b, a, b),
    WHERE: lambda c, a, b: choose(c == 1, a, b),
    NOT: lambda c: number(1) - c,
    LESS: lambda a, b: _truth(a < b),
    LESS_EQUAL: lambda a, b: _truth(a <= b),
    EQUAL: lambda a, b: _truth(a == b),
    FUNCTIONS["abs"]: lambda a: choose(a < 0, a * -1, a),
    FUNCTIONS["sign"]: lambda a: choose(a < 0, -1, choose(a == 0, 0, 1)),
}


def equal_by_cases(left: View, right: View) -> bool:
    """Whether two values of one shape are equal in every case; of sums over the same indices, the summands."""
    if left.shape != right.shape or left.term is right.term:
        return False
    reader = _Reader()
    try:
        claim = reader.read(*_summand(left)) == reader.read(*_summand(right))
    except _NoNumberError:
        return False
    if not reader.has_choice or _summed(left) != _summed(right):
        return False
    claim = implies(both(*reader.known), claim)
    return counterexample(claim, {}, _TRIALS) is None and proved(Question(claim, ()))


def _summed(view: View) -> Sequence[object]:
    return () if view.term.operation is not CONTRACT else open_view(view).shape[view.rank :]


def _summand(view: View) -> tuple[Fraction, Sequence[View]]:
    """What a value is the sum of, as a product."""
    if not isinstance(view.coefficient, Fraction):
        raise _NoNumberError
    if view.term.operation is CONTRACT:
        return view.coefficient, open_view(view).operands
    return view.coefficient, (view.unscaled(),)


class _Reader:
    """Values as formulas. What is no choice and no polynomial is a variable, which stands for any real number."""

    def __init__(self) -> None:
        self.has_choice = False
        self.known: list[Formula] = []
        self._variables: dict[tuple[Term, tuple[Axis, ...]], Formula] = {}
        self._nodes = 0

    def read(self, coefficient: Fraction, factors: Sequence[View]) -> Formula:
        """A product."""
        return math.prod(map(self._value, factors), start=number(coefficient))

    def _value(self, view: View) -> Formula:
        self._nodes += 1
        if not isinstance(view.coefficient, Fraction) or self._nodes > _MAX_NODES:
            raise _NoNumberError
        return number(view.coefficient) if view.term.operation is UNIT else self._term(view) * view.coefficient

    def _term(self, view: View) -> Formula:
        operation, opened = view.term.operation, open_view(view) if view.term.operands else None
        if opened is None or len(opened.shape) != view.rank or view.term.cores or view.term.fresh:
            return self._variable(view)
        if operation is COMBINE:
            return total([self._value(operand) for operand in opened.operands])
        if operation is CONTRACT:
            return self.read(Fraction(1), opened.operands)
        exponent = view.term.attributes[0] if operation is POWER else None
        if isinstance(exponent, Fraction) and exponent in range(2, _MAX_POWER + 1):
            return self.read(Fraction(1), list(opened.operands) * int(exponent))
        if operation not in _CHOICES or any(may_be_whole(operand.term) for operand in opened.operands):
            return self._variable(view)
        self.has_choice = True
        return _CHOICES[operation](*map(self._value, opened.operands))

    def _variable(self, view: View) -> Formula:
        view = view.unscaled()
        key = view.term, view.axes
        if key in self._variables:
            return self._variables[key]
        value = real(f"x{len(self._variables)}")
        if is_indicator(view):
            return self._variables.setdefault(key, _truth(value < 0))
        if may_be_whole(view.term) or not is_defined(view):
            raise _NoNumberError
        if is_positive(view):
            self.known.append(number(0) < value)
        return self._variables.setdefault(key, value)
