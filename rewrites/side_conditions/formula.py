"""Statements of linear integer arithmetic as data: what a lemma asks the solver, and what a certificate lists.

They are written as with a solver's own expressions, by operators, but know no solver: ``smt_lib.py`` writes them for
one, and ``evaluate`` computes them for given numbers, so that a listed statement can be tried without one.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

Number = int | Fraction


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """``kind`` applied to ``parts``: formulas, numbers and names. Comparisons make formulas, as a solver's do."""

    kind: str
    parts: tuple[Any, ...]

    def __add__(self, other: Formula | Number) -> Formula:
        return Formula("+", (self, _lift(other)))

    def __sub__(self, other: Formula | Number) -> Formula:
        return Formula("-", (self, _lift(other)))

    def __mul__(self, other: Formula | Number) -> Formula:
        return Formula("*", (self, _lift(other)))

    def __floordiv__(self, other: int) -> Formula:
        return Formula("//", (self, _lift(other)))

    def __mod__(self, other: int) -> Formula:
        return Formula("%", (self, _lift(other)))

    def __lt__(self, other: Formula | Number) -> Formula:
        return Formula("<", (self, _lift(other)))

    def __le__(self, other: Formula | Number) -> Formula:
        return Formula("<=", (self, _lift(other)))

    def __gt__(self, other: Formula | Number) -> Formula:
        return Formula("<", (_lift(other), self))

    def __ge__(self, other: Formula | Number) -> Formula:
        return Formula("<=", (_lift(other), self))

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]  # a statement, not its truth
        return Formula("==", (self, _lift(other)))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]  # a statement, not its truth
        return Formula("!=", (self, _lift(other)))

    __hash__ = None  # type: ignore[assignment]  # equality is a statement

    def __bool__(self) -> bool:
        raise TypeError("a statement has no truth before its variables have values")


def _lift(value: object) -> Formula:
    if isinstance(value, Formula):
        return value
    if isinstance(value, bool):
        return Formula("truth", (value,))
    if isinstance(value, int | Fraction):
        return number(value)
    raise TypeError(f"no number: {value!r}")


def number(value: Number) -> Formula:
    """A rational number."""
    return Formula("number", (value.numerator, value.denominator))


def index(dim: int) -> Formula:
    """The position in a dimension: a whole number from 0 on."""
    return Formula("index", (dim,))


def integer(name: str) -> Formula:
    """Any whole number."""
    return Formula("integer", (name,))


def real(name: str) -> Formula:
    """Any real number."""
    return Formula("real", (name,))


def truth(value: bool) -> Formula:
    """True or false."""
    return Formula("truth", (value,))


def floor(value: Formula) -> Formula:
    """The largest whole number that is not larger."""
    return Formula("floor", (value,))


def both(*parts: Formula) -> Formula:
    """All of the statements; true where there are none."""
    return Formula("and", parts)


def either(*parts: Formula) -> Formula:
    """At least one of the statements."""
    return Formula("or", parts)


def negation(part: Formula) -> Formula:
    """The statement does not hold."""
    return Formula("not", (part,))


def implies(given: Formula, wanted: Formula) -> Formula:
    """``wanted`` wherever ``given`` holds."""
    return either(negation(given), wanted)


def choose(condition: Formula, then: Formula | Number, otherwise: Formula | Number) -> Formula:
    """``then`` where the condition holds, else ``otherwise``."""
    return Formula("if", (condition, _lift(then), _lift(otherwise)))


def total(parts: Sequence[Formula]) -> Formula:
    """The sum of all parts."""
    result = number(0)
    for part in parts:
        result = result + part
    return result


# ------------------------------------------------------------------------------------------------ on numbers

Key = tuple[str, Any]
"""``("index", dim)``, ``("integer", name)`` or ``("real", name)``."""

_UNARY: dict[str, Callable[[Any], Any]] = {"not": operator.not_, "floor": math.floor}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def evaluate(formula: Formula, values: Mapping[Key, Number]) -> Any:
    """A number or a truth, where the variables have these values."""
    return evaluated(formula)(values)


def evaluated(formula: Formula) -> Callable[[Mapping[Key, Number]], Any]:
    """A number or a truth, by the values of the variables."""
    kind, parts = formula.kind, formula.parts
    if kind in ("number", "truth"):
        value = parts[0] if parts[1:] in ((), (1,)) else Fraction(*parts)
        return lambda _: value
    if kind in ("index", "integer", "real"):
        return operator.itemgetter((kind, parts[0]))
    inner = [evaluated(part) for part in parts]
    if kind == "and":
        return lambda values: all(part(values) for part in inner)
    if kind == "or":
        return lambda values: any(part(values) for part in inner)
    if kind == "if":
        condition, then, otherwise = inner
        return lambda values: then(values) if condition(values) else otherwise(values)
    if kind in _UNARY:
        (one,), function = inner, _UNARY[kind]
        return lambda values: function(one(values))
    (left, right), combined = inner, _BINARY[kind]
    return lambda values: combined(left(values), right(values))


def variables(formula: Formula) -> dict[Key, None]:
    """All variables, in order of appearance."""
    if formula.kind in ("index", "integer", "real"):
        return {(formula.kind, formula.parts[0]): None}
    found: dict[Key, None] = {}
    for part in formula.parts:
        if isinstance(part, Formula):
            found.update(variables(part))
    return found


def numbers(formula: Formula) -> set[Fraction]:
    """All numbers in a formula."""
    if formula.kind == "number":
        return {Fraction(formula.parts[0], formula.parts[1])}
    return set[Fraction]().union(*(numbers(part) for part in formula.parts if isinstance(part, Formula)))
