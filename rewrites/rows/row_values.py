"""Values whose rows are read from data: which rows of a table are there, in which order.

The rows are those of a table of known size at which an indicator is one, in the order of the table or, where ``ties``
says so, in another. Rows sorted by a whole number below a bound are those of a table ``(number, row)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import sympy

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.rewrites.values import ReadRows


@dataclasses.dataclass(frozen=True)
class Rows:
    """``present``: for each of ``total`` rows whether it is there.

    ``span``: the first row and the one past the last, where the second is known to be none before the first.
    ``ties``: None where the rows are in order; else what the order, which is not known, depends on.
    ``table``: sizes of the table that the rows are taken from, as far as they are known; a guess where to look.
    ``defined``: where not all rows have a value, as memory that nothing was written to, how many of the first do.
    """

    total: Size
    present: View
    span: tuple[sympy.Expr, sympy.Expr] | None
    ties: Hashable = None
    table: tuple[Size, ...] = dataclasses.field(default=(), compare=False)
    defined: Size | None = None


@dataclasses.dataclass(frozen=True)
class Sorting:
    """How the ``length`` rows of a tensor are sorted by ``key``, of which every element is one of ``groups`` numbers.

    ``index``: the places of the sorted rows, as the sort gives them.
    ``cut``: where the last groups are of rows that are not meant, how many groups are before them.
    """

    key: View
    index: View
    groups: int
    length: Size
    cut: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged(ReadRows):
    """The ``rows`` of ``view`` along its tensor dimension ``dim``."""

    view: View
    dim: int
    rows: Rows


@dataclasses.dataclass(frozen=True, eq=False)
class Filled(ReadRows):
    """``length`` equal rows along ``dim``, each of them ``row``, whose size along ``dim`` is one."""

    row: View
    dim: int
    length: sympy.Expr


@dataclasses.dataclass(frozen=True, eq=False)
class Sorted(ReadRows):
    """The places in ``source``, rows themselves, of its rows in the order of a sort: ``rows``, by group and row."""

    source: Rows
    rows: Rows
    groups: int


@dataclasses.dataclass(frozen=True, eq=False)
class Unsorted(ReadRows):
    """For each row that was sorted its place among the sorted ones. ``source``: None for all rows of a tensor."""

    source: Rows | None
    rows: Rows
    groups: int
    length: Size


class Counts:
    """Numbers that one program reads from tensors. ``views``: their values. ``lengths``: those that are sizes.

    ``sortings``: what rows are all rows of a tensor, sorted.
    """

    def __init__(self) -> None:
        self.views: dict[sympy.Basic, View] = {}
        self.lengths: set[sympy.Basic] = set()
        self.sortings: dict[Rows, Sorting] = {}

    def occur_in(self, value: object) -> bool:
        """Whether a number is an expression of them."""
        return isinstance(value, sympy.Basic) and bool(value.free_symbols & self.views.keys())

    def number(self, b: Builder, value: sympy.Expr) -> View:
        """A linear expression of them as a tensor without dimensions."""
        expanded = sympy.expand(value)
        parts: list[tuple[Any, Any]] = []
        for symbol, view in self.views.items():
            factor = expanded.coeff(symbol, 1)
            if factor != 0:
                parts.append((int(factor), view))
                expanded -= factor * symbol
        rest = sympy.expand(expanded)
        if not rest.is_Integer:
            raise UnsupportedError(UNREPRESENTABLE, f"`{value}` is not linear in numbers read from tensors")
        return b.combination(*parts, (int(rest), 1))

    def at_least(self, high: sympy.Expr, low: sympy.Expr) -> bool:
        """Whether ``low <= high`` because their difference is a sum of sizes."""
        difference = sympy.expand(high - low)
        if difference == 0:
            return True
        terms = difference.as_coefficients_dict()
        return all(factor >= 0 and (term == 1 or term in self.lengths) for term, factor in terms.items())
