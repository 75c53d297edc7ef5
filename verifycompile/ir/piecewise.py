"""What a pool asks of the form of values that are concatenations of parts; ``rewrites/parts/piecewise.py`` has it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, TermPool, View


class Piecewise(Protocol):
    """How values that are concatenations of parts are brought into one form.

    Each method returns None where there are no parts.
    """

    def product(self, pool: TermPool, factors: Sequence[View], shape: tuple[Size, ...], free: int) -> View | None:
        """A sum of products, as ``ContractionRule`` gets it."""
        ...

    def combination(self, pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> View | None:
        """A sum of operands."""
        ...

    def pointwise(self, pool: TermPool, function: Callable[..., View], operands: Sequence[View]) -> View | None:
        """A function of one element of each operand."""
        ...

    def application(  # noqa: PLR0917 - the fields of a term, in their order
        self,
        pool: TermPool,
        operation: Operation,
        attributes: tuple[Hashable, ...],
        operands: Sequence[View],
        free: int,
        summed: int,
        cores: tuple[tuple[int, ...], ...],
        fresh: tuple[int, ...],
    ) -> View | None:
        """An operation on operands over its indices."""
        ...

    def holds_parts(self, view: View, dim: int) -> bool:
        """Whether a slice along ``dim`` is one of parts."""
        ...

    def joined(self, pool: TermPool, views: Sequence[View], dim: int) -> View:
        """A concatenation."""
        ...

    def chosen(self, pool: TermPool, view: View) -> View:
        """A view in which positions are chosen."""
        ...

    def narrowed(self, pool: TermPool, view: View, dim: int, start: int, length: int) -> View:
        """A slice."""
        ...
