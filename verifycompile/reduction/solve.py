"""The smallest sizes that meet the constraints, found by z3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from verifycompile.reduction.constraints import (
    AtLeast,
    Constraint,
    Constraints,
    Extent,
    Multiple,
    Product,
    Proportion,
    Sum,
    keeps_proportion,
    offset_from_end,
)

_TIMEOUT_MILLISECONDS = 5_000


@dataclasses.dataclass(frozen=True)
class Sizes:
    """``sizes``: number -> the number that takes its place as a size. ``positions``: (whole, position) -> position."""

    sizes: Mapping[int, int]
    positions: Mapping[tuple[int, int], int]

    def size(self, number: int) -> int:
        """The size that takes the place of ``number``; what is no known size stays."""
        return self.sizes.get(number, number)

    def position(self, position: int, whole: int) -> int:
        """Where a position of a dimension of size ``whole`` lies."""
        if position >= whole:
            return self.size(whole)
        return self.positions.get((whole, position), position)


def solve(constraints: Constraints, kept: int) -> Sizes | None:
    """Sizes that meet all constraints, as small as z3 finds; None where it finds none in time.

    Numbers up to ``kept`` stay.
    """
    return _Problem(constraints, kept).solution()


class _Problem:
    def __init__(self, constraints: Constraints, kept: int) -> None:
        import z3  # here, because a proof needs no solver of its own for this

        self._z3: Any = z3
        self._constraints, self._kept = constraints, kept
        self._solver: Any = z3.Optimize()
        self._sizes: dict[int, Any] = {}
        self._positions: dict[tuple[int, int], Any] = {}

    def solution(self) -> Sizes | None:
        for number in sorted(self._constraints.numbers):
            self._size(number)
        for constraint in self._constraints.constraints:
            self._solver.add(*self._formulas(constraint))
        for number in self._constraints.pinned:
            if number in self._sizes:
                self._solver.add(self._sizes[number] == number)
        free = [variable for number, variable in self._sizes.items() if number > self._kept]
        if not free:
            return None
        self._solver.minimize(self._z3.Sum(free))
        self._solver.set("timeout", _TIMEOUT_MILLISECONDS)
        if self._solver.check() != self._z3.sat:
            return None
        model = self._solver.model()

        def value(variable: Any) -> int:
            return int(model.eval(variable, model_completion=True).as_long())

        return Sizes(
            {number: value(variable) for number, variable in self._sizes.items()},
            {key: value(variable) for key, variable in self._positions.items()},
        )

    def _size(self, number: int) -> Any:
        if number <= 1:
            return number
        if number not in self._sizes:
            variable = self._z3.Int(f"size_{number}")
            self._sizes[number] = variable
            if number <= self._kept:
                self._solver.add(variable == number)
            else:
                self._solver.add(variable >= 2, variable <= number)
        return self._sizes[number]

    def _position(self, position: int, whole: int) -> Any:
        if position in (0, whole):
            return position if position == 0 else self._size(whole)
        key = (whole, position)
        if key not in self._positions:
            variable = self._z3.Int(f"position_{position}_of_{whole}")
            self._positions[key] = variable
            size, offset = self._size(whole), offset_from_end(position, whole)
            if offset is not None:
                self._solver.add(variable == (offset if offset >= 0 else size + offset))
            elif keeps_proportion([position], whole):
                self._solver.add(variable * whole == size * position)
            else:
                self._solver.add(size == whole, variable == position)
            self._solver.add(variable > 0, variable < size)
        return self._positions[key]

    def _product(self, numbers: tuple[int, ...]) -> Any:
        result: Any = 1
        for number in numbers:
            result = result * self._size(number)
        return result

    def _formulas(self, constraint: Constraint) -> list[Any]:
        match constraint:
            case Product(left, right, factor):
                return [self._product(left) * factor == self._product(right)]
            case Sum(parts, whole):
                return [self._z3.Sum([self._size(part) for part in parts]) == self._size(whole)]
            case Proportion(part, whole):
                return [self._size(part) * whole == self._size(whole) * part]
            case Extent(whole, start, end, length):
                return [self._position(end, whole) - self._position(start, whole) == self._size(length)]
            case AtLeast(size, least):
                return [self._size(size) >= least]
            case Multiple(size, divisor):
                return [self._size(size) % divisor == 0]
