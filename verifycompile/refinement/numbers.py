"""Expressions evaluated at a few numbers: two that differ there are equal by no law, so none is looked for.

A leaf is read as a number of its own, the same at every place of its term; a sum over an index is then a multiplication
by the size. What has no number in this reading, such as the logarithm of a negative number, says nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from verifycompile.ir.term import View
from verifycompile.rewrites.interpretation import Expression, Space

_TRIALS = 3
_TOLERANCE = 1e-6

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "zero": lambda: 0.0, "one": lambda: 1.0,
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "scale": lambda p, a: p * a,
    "power": lambda p, a: math.pow(a, p), "exp": math.exp, "log": math.log, "not": lambda a: 1 - a,
    "maximum": max, "minimum": min, "where": lambda c, a, b: a if c else b,
    "abs": math.fabs, "cos": math.cos, "cosh": math.cosh, "erf": math.erf, "erfc": math.erfc, "expm1": math.expm1,
    "log1p": math.log1p, "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "sin": math.sin, "sinh": math.sinh,
    "tan": math.tan, "tanh": math.tanh, "log_sigmoid": lambda a: -math.log1p(math.exp(-a)),
}  # fmt: skip


def differ(space: Space, left: Expression, right: Expression) -> bool:
    """Whether two expressions have different numbers for the same leaves."""
    for trial in range(_TRIALS):
        leaves = [_number(view, trial) for view in space.leaves]
        try:
            first, second = (evaluate(e, leaves, space.sizes) for e in (left, right))
        except (ValueError, OverflowError, ZeroDivisionError, TypeError):
            continue
        if abs(first - second) > _TOLERANCE * (1 + abs(first) + abs(second)):
            return True
    return False


def _number(view: View, trial: int) -> float:
    generator = random.Random(1000 * view.term.id + trial)  # noqa: S311 - no secret
    if view.term.operation.indicator:
        return float(generator.random() < 0.5)
    return generator.uniform(-2, 2)


def evaluate(expression: Expression, leaves: Sequence[float], sizes: Sequence[Any]) -> float:
    """The number of an expression."""
    if isinstance(expression, int):
        return leaves[expression]
    operator, *arguments = expression
    if operator == "sum":
        return int(sizes[arguments[0]]) * evaluate(arguments[1], leaves, sizes)
    if operator in ("scale", "power"):
        return _FUNCTIONS[operator](float(arguments[0]), evaluate(arguments[1], leaves, sizes))
    return _FUNCTIONS[operator](*(evaluate(argument, leaves, sizes) for argument in arguments))
