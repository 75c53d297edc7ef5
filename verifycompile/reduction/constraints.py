"""What is required of the sizes of programs, so that smaller sizes can take their place."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch
import torch.fx

from verifycompile.reduction.dimensions import Dimension, Dimensions
from verifycompile.reduction.recorded import shapes_of

_LARGEST_SHARE = 64
"""Positions in a dimension keep their proportion where it is at most so many times the common divisor of them all."""
NEAR = 8
"""Positions so near to an end of a dimension keep their distance from it."""


@dataclasses.dataclass(frozen=True)
class Product:
    """The product of the left sizes and of a factor that is no size is the product of the right sizes."""

    left: tuple[Dimension, ...]
    right: tuple[Dimension, ...]
    factor: int = 1


@dataclasses.dataclass(frozen=True)
class Sum:
    """The parts make up the whole."""

    parts: tuple[Dimension, ...]
    whole: Dimension


@dataclasses.dataclass(frozen=True)
class Proportion:
    """``part`` and ``whole`` shrink by the same factor."""

    part: Dimension
    whole: Dimension


@dataclasses.dataclass(frozen=True)
class Extent:
    """The positions ``start`` and ``end`` of the dimension ``whole`` are ``length`` apart."""

    whole: Dimension
    start: int
    end: int
    length: Dimension


@dataclasses.dataclass(frozen=True)
class Covers:
    """``whole`` stays at least as large as ``part``."""

    whole: Dimension
    part: Dimension


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """``size`` does not fall below ``least``."""

    size: Dimension
    least: int


@dataclasses.dataclass(frozen=True)
class Multiple:
    """``size`` stays divisible by ``divisor``."""

    size: Dimension
    divisor: int


Constraint = Product | Sum | Proportion | Extent | Covers | AtLeast | Multiple


def keeps_proportion(parts: Iterable[int], whole: int) -> bool:
    """Whether parts of a dimension can shrink with it."""
    return whole // math.gcd(whole, *parts) <= _LARGEST_SHARE


def offset_from_end(position: int, whole: int) -> int | None:
    """The distance that a position keeps from the start (positive or 0) or from the end (negative) of its dimension."""
    if position <= NEAR:
        return position
    return position - whole if whole - position <= NEAR else None


class Constraints:
    """What is required of the sizes of two programs. ``pinned``: dimension -> why it stays as it is.

    Sizes are given as the numbers that they are at ``node``, the one that requires something of them.
    """

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions = dimensions
        self.node: torch.fx.Node | None = None
        self.sizes = dict.fromkeys(dimensions.all)
        self.constraints: dict[Constraint, None] = {}
        self.pinned: dict[Dimension, str] = {}

    def note(self, number: int, node: torch.fx.Node | None = None) -> Dimension:
        """The dimension that a number is, which may change."""
        dimension = self.dimensions.at(node or self.node, number)
        if number > 1:
            self.sizes[dimension] = None
        return dimension

    def pin(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            if number > 1:
                self.pinned.setdefault(self.note(number), reason)

    def pin_results(self, node: torch.fx.Node, reason: str) -> bool:
        """Pins the sizes of what a node gives; whether that pins anything that was not pinned."""
        before, self.node = len(self.pinned), node
        for shape in shapes_of(node):
            self.pin(shape, reason)
        return len(self.pinned) > before

    def pin_node(self, node: torch.fx.Node, reason: str) -> None:
        """Pins all sizes that a node takes and gives."""
        self.node = node
        for other in (node, *node.all_input_nodes):
            for shape in shapes_of(other):
                self.pin(shape, reason)

    def product(self, left: Sequence[int | None], right: Sequence[int | None], factor: int = 1) -> None:
        """Sizes on both sides cancel; None is a size that is no number, and must cancel."""
        remaining = collections.Counter(right)
        first: list[int] = []
        for size in left:
            if remaining[size] > 0:
                remaining[size] -= 1
            elif size is not None:
                first.append(size)
        second = [size for size in remaining.elements() if size is not None]
        self.product_of([self.note(s) for s in first], [self.note(s) for s in second], factor)

    def product_of(self, left: Iterable[Dimension], right: Iterable[Dimension], factor: int = 1) -> None:
        sides = [tuple(sorted(size for size in side if size.number != 1)) for side in (left, right)]
        if any(sides):
            self.constraints[Product(sides[0], sides[1], factor)] = None

    def parts(self, parts: Sequence[int], whole: int) -> None:
        """A dimension that is assembled from parts, or cut into them."""
        if len(parts) == 1:
            return
        if keeps_proportion(parts, whole):
            for part in parts:
                self.proportion(part, whole)
        self.constraints[Sum(tuple(sorted(self.note(part) for part in parts)), self.note(whole))] = None

    def proportion(self, part: int, whole: int) -> None:
        self.constraints[Proportion(self.note(part), self.note(whole))] = None

    def extent(self, whole: int, start: int, end: int, length: int) -> None:
        self.constraints[Extent(self.note(whole), start, end, self.note(length))] = None

    def covers(self, whole: int, part: torch.fx.Node) -> None:
        """A dimension has an element for each of a range of numbers, as long as it had before."""
        for size in shapes_of(part)[0]:
            if 1 < size <= whole:
                self.constraints[Covers(self.note(whole), self.note(size, part))] = None

    def at_least(self, size: int, least: int) -> None:
        self.constraints[AtLeast(self.note(size), least)] = None

    def multiple(self, size: int, divisor: int) -> None:
        self.constraints[Multiple(self.note(size), divisor)] = None
