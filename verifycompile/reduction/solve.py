"""Small sizes that meet the constraints, found by z3 one after the other.

The smallest numbers come first: they are the factors of the larger ones, and once they are known the products are
linear. To ask for the smallest sum of all of them at once takes z3 many times as long and gives little less.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch.fx

from verifycompile import bounds
from verifycompile.reduction.constraints import (
    AtLeast,
    Constraint,
    Constraints,
    Covers,
    Extent,
    Multiple,
    Product,
    Proportion,
    Sum,
    keeps_proportion,
    offset_from_end,
)
from verifycompile.reduction.dimensions import Dimension, Dimensions

_MOST_STEPS = 3_000_000
"""Of z3's own count for one question, about 0.3 seconds on any machine; what is left open is taken for impossible."""
_ALL_STEPS = 10 * _MOST_STEPS
_TIMEOUT_MILLISECONDS = 30_000
"""Only where the steps of a question are slow ones: what else a machine does must change no sizes."""
_BOUNDS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512, 1024, 4096, 16384, 65536)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """``sizes``: what takes the place of a dimension. ``positions``: (dimension, position) -> its new position."""

    dimensions: Dimensions
    sizes: Mapping[Dimension, int]
    positions: Mapping[tuple[Dimension, int], int]

    def size(self, number: int, node: torch.fx.Node | None = None) -> int:
        """The size that takes the place of ``number`` at ``node``; what is no known size stays."""
        return self._new.get(number, {}).get(self.dimensions.which(node, number), number)

    def position(self, position: int, whole: int, node: torch.fx.Node) -> int:
        """Where a position of a dimension of size ``whole`` lies."""
        if position >= whole:
            return self.size(whole, node)
        return self.positions.get((self.dimensions.at(node, whole), position), position)

    @functools.cached_property
    def _new(self) -> dict[int, dict[int, int]]:
        """Number -> which of its dimensions -> what takes its place, where that is another number."""
        found: dict[int, dict[int, int]] = {}
        for (number, which), new in self.sizes.items():
            if new != number:
                found.setdefault(number, {})[which] = new
        return found

    @functools.cached_property
    def changed(self) -> dict[int, tuple[int, ...]]:
        """Each number that is a size -> what became of it, where that is another number."""
        return {number: tuple(dict.fromkeys(found.values())) for number, found in sorted(self._new.items())}


def solve(constraints: Constraints, kept: int, *, apart: bool) -> Sizes | None:
    """Sizes that meet all constraints, as small as z3 finds; None where it finds none in time.

    Numbers up to ``kept`` stay. ``apart``: whether different sizes stay different where they can.
    """
    return _Problem(constraints, kept, apart=apart).solution()


class _Problem:
    def __init__(self, constraints: Constraints, kept: int, *, apart: bool) -> None:
        import z3  # here, because a proof needs no solver of its own for this

        self._z3: Any = z3
        self._constraints, self._kept, self._apart = constraints, kept, apart
        self._solver: Any = z3.Solver()
        self._solver.set("rlimit", _MOST_STEPS)
        self._solver.set("timeout", _TIMEOUT_MILLISECONDS)
        self._model: Any = None
        self._taken: dict[int, int] = {}
        self._sizes: dict[Dimension, Any] = {}
        self._positions: dict[tuple[Dimension, int], Any] = {}

    def solution(self) -> Sizes | None:
        for dimension in sorted(self._constraints.sizes):
            self._size(dimension)
        for constraint in self._constraints.constraints:
            self._solver.add(*self._formulas(constraint))
        for dimension in self._constraints.pinned:
            self._solver.add(self._size(dimension) == dimension.number)
        free = [dimension for dimension in sorted(self._sizes) if dimension.number > self._kept]
        if not free or self._solver.check() != self._z3.sat:
            return None
        self._model = self._solver.model()
        self._taken = {dimension.number: dimension.number for dimension in self._sizes if dimension not in free}
        most = self._steps() + _ALL_STEPS
        for dimension in free:
            bounds.check()
            if self._steps() > most:
                break
            self._shrink(dimension)
        return Sizes(
            self._constraints.dimensions,
            {dimension: self._value(variable) for dimension, variable in self._sizes.items()},
            {key: self._value(variable) for key, variable in self._positions.items()},
        )

    def _steps(self) -> int:
        """Of all questions that z3 was asked so far."""
        statistics = self._solver.statistics()
        counts = dict(statistics[position] for position in range(len(statistics)))
        return counts.get("rlimit count", 0)

    def _shrink(self, dimension: Dimension) -> None:
        """Fixes the size of a dimension: as small as z3 can make it, and apart from what other numbers have got."""
        variable = self._sizes[dimension]
        others = [size for size, number in self._taken.items() if self._apart and number != dimension.number]
        apart = [variable != size for size in others]
        if not self._smaller(variable, apart) and self._value(variable) in others:
            self._smaller(variable, [])
        size = self._value(variable)
        self._solver.add(variable == size)
        self._taken.setdefault(size, dimension.number)

    def _smaller(self, variable: Any, wanted: list[Any]) -> bool:
        """Whether z3 finds a model in which a variable is smaller, or what is wanted holds."""
        upper = [bound for bound in _BOUNDS if wanted or bound < self._value(variable)]
        found, impossible = len(upper), -1
        tried = 0
        # The smallest bound is what most sizes take, and where the largest is impossible all others are.
        while impossible + 1 < found:
            position = (0, found - 1, (impossible + found) // 2)[min(tried, 2)]
            tried += 1
            if self._holds([variable <= upper[position], *wanted]):
                found = position
            else:
                impossible = position
        return found < len(upper)

    def _holds(self, wanted: list[Any]) -> bool:
        """Whether z3 finds a model in which all of it holds, which is kept then."""
        self._solver.push()
        self._solver.add(*wanted)
        found = self._solver.check() == self._z3.sat
        if found:
            self._model = self._solver.model()
        self._solver.pop()
        return found

    def _value(self, variable: Any) -> int:
        return int(self._model.eval(variable, model_completion=True).as_long())

    def _size(self, dimension: Dimension) -> Any:
        number, which = dimension
        if number <= 1:
            return number
        if dimension not in self._sizes:
            variable = self._z3.Int(f"size_{number}_{which}")
            self._sizes[dimension] = variable
            if number <= self._kept:
                self._solver.add(variable == number)
            else:
                self._solver.add(variable >= 2, variable <= number)
        return self._sizes[dimension]

    def _position(self, position: int, dimension: Dimension) -> Any:
        whole = dimension.number
        if position in (0, whole):
            return position if position == 0 else self._size(dimension)
        key = (dimension, position)
        if key not in self._positions:
            variable = self._z3.Int(f"position_{position}_of_{whole}_{dimension.which}")
            self._positions[key] = variable
            size, offset = self._size(dimension), offset_from_end(position, whole)
            if offset is not None:
                self._solver.add(variable == (offset if offset >= 0 else size + offset))
            elif keeps_proportion([position], whole):
                self._solver.add(variable * whole == size * position)
            else:
                self._solver.add(size == whole, variable == position)
            self._solver.add(variable > 0, variable < size)
        return self._positions[key]

    def _product(self, sizes: tuple[Dimension, ...]) -> Any:
        result: Any = 1
        for size in sizes:
            result = result * self._size(size)
        return result

    def _formulas(self, constraint: Constraint) -> list[Any]:
        match constraint:
            case Product(left, right, factor):
                return [self._product(left) * factor == self._product(right)]
            case Sum(parts, whole):
                return [self._z3.Sum([self._size(part) for part in parts]) == self._size(whole)]
            case Proportion(part, whole):
                return [self._size(part) * whole.number == self._size(whole) * part.number]
            case Extent(whole, start, end, length):
                return [self._position(end, whole) - self._position(start, whole) == self._size(length)]
            case Covers(whole, part):
                return [self._size(whole) >= self._size(part)]
            case AtLeast(size, least):
                return [self._size(size) >= least]
            case Multiple(size, divisor):
                return [self._size(size) % divisor == 0]
