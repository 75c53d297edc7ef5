"""Statements about whole and real numbers, tried at points where a wrong one is likely to fail.

What a solver says is tried before it is believed, and what a certificate lists is tried before it is used.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from verifycompile.rewrites.side_conditions.formula import Formula, Key, Number, evaluated, numbers, variables

_EXHAUSTIVE = 1_024
"""So many points, or fewer, are tried one and all."""
_SMALL = 16
"""Indices of fewer positions are tried at all of them."""


def counterexample(claim: Formula, sizes: Mapping[int, int | None], most: int) -> dict[Key, Number] | None:
    """Values at which the claim fails, at some ``most`` points; None where it holds at all of them."""
    holds = evaluated(claim)
    for values in _points(list(variables(claim)), sizes, sorted(numbers(claim)), most):
        if not holds(values):
            return values
    return None


def _points(
    names: Sequence[Key], sizes: Mapping[int, int | None], constants: Sequence[Fraction], most: int
) -> Iterator[dict[Key, Number]]:
    """Values for all variables: near the ends of every dimension, near every constant of the claim and at random."""
    draw = random.Random(0)  # noqa: S311 - the same points every time
    choices: list[Sequence[Number]] = []
    for kind, name in names:
        if kind == "index":
            size = sizes[name]
            last = 1000 if size is None else size - 1
            ends = {0, 1, last, last - 1, last // 2, draw.randint(0, max(last, 0))}
            near_constants = {int(value) + step for value in constants for step in (-1, 0, 1)}
            chosen = range(last + 1) if last < _SMALL else sorted(ends | near_constants)
            choices.append([value for value in chosen if 0 <= value <= last])
        else:
            near = {
                value + step
                for value in (*constants, *(v * w for v in constants for w in constants))
                for step in (-1, 0, 1)
            }
            largest = int(max(map(abs, near), default=Fraction(1))) + 1
            near |= {Fraction(draw.randint(-largest, largest)) for _ in range(8)}
            if kind == "real":
                near |= {value + Fraction(1, 2) for value in near}
            whole = [int(value) if value.denominator == 1 else value for value in sorted(near)]
            choices.append(whole if kind == "real" else [value for value in whole if isinstance(value, int)])
    total = math.prod(map(len, choices))
    for number in range(total) if total <= _EXHAUSTIVE else draw.sample(range(min(total, sys.maxsize)), most):
        place, values = number, dict[Key, Number]()
        for name, options in zip(names, choices, strict=True):
            place, chosen = divmod(place, len(options))
            values[name] = options[chosen]
        yield values
