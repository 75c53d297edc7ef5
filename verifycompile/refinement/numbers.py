"""Expressions evaluated at a few numbers: two that differ there are equal by no law, so none is looked for.

A leaf is read as a number of its own at every place of its term, so that a matrix is not its transpose. Where sums run
over many places, or a size is open, it is the same number at all of them; a sum over an index is then a multiplication
by the size. What has no number in this reading, such as the logarithm of a negative number, says nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from verifycompile.ir.term import CONSTANT, View
from verifycompile.rewrites.interpretation import Expression, Space

_TRIALS = 3
_MAX_PLACES = 64
"""Over which sums run one by one."""
_TOLERANCE = 1e-6

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "zero": lambda: 0.0, "one": lambda: 1.0,
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "scale": lambda p, a: p * a,
    "power": lambda p, a: math.pow(a, p), "exp": math.exp, "log": math.log, "not": lambda a: 1 - a,
    "maximum": max, "minimum": min, "where": lambda c, a, b: a if c else b,
    "abs": math.fabs, "cos": math.cos, "cosh": math.cosh, "erf": math.erf, "erfc": math.erfc,
    "log1p": math.log1p, "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "sin": math.sin, "sinh": math.sinh,
    "tan": math.tan, "tanh": math.tanh, "log_sigmoid": lambda a: -math.log1p(math.exp(-a)),
}  # fmt: skip


def differ(space: Space, left: Expression, right: Expression) -> bool:
    """Whether two expressions have different numbers for the same leaves."""
    for trial in range(_TRIALS):
        reading = _Reading(space, trial)
        try:
            first, second = reading.evaluate(left), reading.evaluate(right)
        except (ValueError, OverflowError, ZeroDivisionError, TypeError):
            continue
        if abs(first - second) > _TOLERANCE * (1 + abs(first) + abs(second)):
            return True
    return False


class _Reading:
    """A number for each leaf at one place of the space."""

    def __init__(self, space: Space, trial: int) -> None:
        self._space = space
        self._generator = random.Random(trial)  # noqa: S311 - no secret
        self._numbers: dict[tuple[int, tuple[int, ...]], float] = {}
        self._place = _place(space, trial) if _is_small(space) else None

    def evaluate(self, expression: Expression) -> float:
        """The number of an expression."""
        if isinstance(expression, int):
            return self._leaf(self._space.leaves[expression])
        operator, *arguments = expression
        if operator == "sum":
            return self._sum(*arguments)
        if operator in ("scale", "power"):
            return _FUNCTIONS[operator](float(arguments[0]), self.evaluate(arguments[1]))
        return _FUNCTIONS[operator](*map(self.evaluate, arguments))

    def _sum(self, dim: int, summand: Expression) -> float:
        size, place = int(self._space.sizes[dim]), self._place
        if place is None:
            return size * self.evaluate(summand)
        total, before = 0.0, place[dim]
        for place[dim] in range(size):
            total += self.evaluate(summand)
        place[dim] = before
        return total

    def _leaf(self, view: View) -> float:
        key = view.term.id, self._position(view)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._generator.uniform(-2, 2)
        return float(number < 0) if view.term.operation.indicator else number

    def _position(self, view: View) -> tuple[int, ...]:
        """Where the term of a leaf is read."""
        place, found = self._place, list[int]()
        if place is None:
            return ()
        for axis in view.axes:
            position = 0
            for dim, low, size in axis:
                digit = int(low) if dim == CONSTANT else place[dim] // int(low) % int(size)
                position = position * int(size) + digit
            found.append(position)
        return tuple(found)


def _place(space: Space, trial: int) -> list[int]:
    """An index of each dimension; those of two dimensions differ in one of the trials."""
    start = random.Random(trial).randrange(1 << 16)  # noqa: S311 - no secret
    return [(start + (dim >> trial)) % int(size) for dim, size in enumerate(space.sizes)]


def _is_small(space: Space) -> bool:
    """Whether leaves can be read place by place."""
    digits = (number for view in space.leaves for axis in view.axes for _, *numbers in axis for number in numbers)
    if not all(isinstance(size, int) for size in (*space.sizes, *digits)):
        return False
    return math.prod(space.sizes[space.rank :]) <= _MAX_PLACES
