"""What the operators of a lemma's pattern build in the IR.

A ground expression is a pattern whose variables are numbers of leaves, rational numbers and numbers of indices. Built
with a ``Builder`` over one space of named indices, the value of an expression is a view of which a sum keeps its
dimension, with size one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from verifycompile.ir.exponential import EXPONENTIAL, LOGARITHM, MAXIMUM, POWER, WHERE
from verifycompile.ir.indicator import NOT
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.lemmas.functions import DEFINITIONS
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern
from verifycompile.rewrites.operations import MINIMUM
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.sigmoids import LOG_SIGMOID

NUMBERS = {"minus_one": Fraction(-1), "half": Fraction(1, 2), "two": Fraction(2)}

POINTWISE: dict[str, Operation] = {
    **{name: FUNCTIONS[name] for name in (
        "abs", "cos", "cosh", "erf", "erfc", "log1p", "sigmoid", "sin", "sinh", "tan", "tanh",
    )},
    "log_sigmoid": LOG_SIGMOID, "maximum": MAXIMUM, "minimum": MINIMUM, "where": WHERE,
}  # fmt: skip
"""Operators that are an operation of the IR on elements, as it is."""

OPERATORS: dict[Operation, str] = {
    **{operation: name for name, operation in POINTWISE.items()},
    EXPONENTIAL: "exp",
    LOGARITHM: "log",
    POWER: "power",
    NOT: "not",
}
"""The operator of a term, where it is a function of elements that lemmas know."""

_BUILT: dict[str, Callable[..., View]] = {
    "add": lambda b, left, right: b.add(left, right),
    "mul": lambda b, left, right: b.mul(left, right),
    "scale": lambda b, factor, value: b.scale(value, factor),
    "power": lambda b, exponent, value: b.power(value, exponent),
    "exp": lambda b, value: b.exp(value),
    "log": lambda b, value: b.log(value),
    "not": lambda b, value: b.negate(value),
}

Expression = Any
"""``int`` for a leaf, a ``Fraction`` where an operator takes a number, a tuple ``(operator, arguments...)``."""


@dataclasses.dataclass(frozen=True)
class Space:
    """Named indices: their ``sizes``, of which the first ``rank`` are dimensions, and views of the leaves over them.

    ``read``: expressions with the values that they were read from.
    """

    sizes: tuple[Size, ...]
    rank: int
    leaves: tuple[View, ...]
    read: Mapping[Expression, View] = dataclasses.field(default_factory=dict[Expression, View])


def ground(pattern: Pattern, values: Mapping[str, Expression]) -> Expression:
    """The instance of a pattern under a substitution."""
    if isinstance(pattern, str):
        return values[pattern]
    operator, *arguments = pattern
    if operator in NUMBERS:
        return NUMBERS[str(operator)]
    if operator == "times":
        first, second = (ground(argument, values) for argument in arguments)
        return first * second
    return (operator, *(ground(argument, values) for argument in arguments))


def build(b: Builder, space: Space, expression: Expression, built: dict[Expression, View] | None = None) -> View:
    """The value of a ground expression over the space. ``built``: values of expressions that are known."""
    if isinstance(expression, int):
        return space.leaves[expression]
    if isinstance(expression, Fraction):
        raise TypeError("a number where a value is expected")
    known = {} if built is None else built
    if expression not in known:
        known[expression] = _applied(b, space, expression, known)
    return known[expression]


def _applied(b: Builder, space: Space, expression: Expression, known: dict[Expression, View]) -> View:
    operator, *arguments = expression
    if operator in ("one", "zero"):
        return b.pool.constant(Fraction(operator == "one"), (1,) * len(space.sizes))
    if operator == "sum":
        return _sum(b, space, int(arguments[0]), build(b, space, arguments[1], known))
    if operator in ("scale", "power"):
        return _BUILT[operator](b, arguments[0], build(b, space, arguments[1], known))
    operands = [build(b, space, argument, known) for argument in arguments]
    if operator in POINTWISE:
        return b.pointwise(POINTWISE[operator], *operands)
    return _BUILT[operator](b, *operands)


def definitions() -> dict[Operation, Callable[[TermPool, View], View]]:
    """Functions of one value that a law writes by exponentials, as what they are by it."""
    return {POINTWISE[str(law.left[0])]: functools.partial(_by_law, law) for law in DEFINITIONS}


def _by_law(law: Lemma, pool: TermPool, value: View) -> View:
    space = Space(value.shape, value.rank, (value,))
    return build(Builder(pool), space, ground(law.right, {"a": 0}))


def _sum(b: Builder, space: Space, dim: int, body: View) -> View:
    shape = tuple(space.sizes[dim] if k == dim else size for k, size in enumerate(body.shape))
    return b.sum(View(body.coefficient, body.term, shape, body.axes), [dim], keepdim=True)
