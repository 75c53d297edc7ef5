"""Sizes and numbers of a captured program, as expressions over the symbols that both programs share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
import torch.fx

from verifycompile.ir.size import Size, normalize_size
from verifycompile.ir.term import View
from verifycompile.lowering.recorded import input_symbols, reads_counts, tensors_of
from verifycompile.program import Program
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError

if TYPE_CHECKING:
    from verifycompile.rewrites.rows.row_values import Counts


class Sizes:
    """The sizes of one program. ``side`` keeps apart what the two programs compute from their data."""

    def __init__(self, program: Program, side: str) -> None:
        self._program, self._side = program, side
        self._symbols = input_symbols(program)
        self._standing_for: Mapping[sympy.Basic, sympy.Basic] = {}
        self._decided: dict[sympy.Basic, Size] = {}
        self.reads_counts = reads_counts(program)

    @functools.cached_property
    def counts(self) -> Counts:
        """What is known of the numbers that the program reads from tensors."""
        from verifycompile.rewrites.rows.row_values import Counts  # here, because few programs read any

        found = Counts()
        if self.reads_counts:
            found.lengths |= self._lengths()
        return found

    @contextlib.contextmanager
    def reading(self, symbols: Mapping[sympy.Basic, sympy.Basic]) -> Generator[None]:
        """Read sizes of another graph, whose symbols stand for those of the program."""
        before, self._standing_for = self._standing_for, symbols
        try:
            yield
        finally:
            self._standing_for = before

    def expression(self, value: Any) -> Any:
        return value.node.expr.xreplace(self._standing_for)

    def size(self, value: Any) -> Size:
        """A dimension recorded by torch as an int or a sympy expression over the unified symbols."""
        if isinstance(value, int):
            return value
        expression = sympy.sympify(self.expression(value) if isinstance(value, torch.SymInt) else value)
        # A size that the program computes (from a tensor's content) is another number in the other program.
        own = {s: sympy.Symbol(f"{self._side}:{s}", positive=True) for s in expression.free_symbols - self._symbols}
        return normalize_size(expression.xreplace({**self._program.size_values, **own, **self._decided}))

    def shape_of(self, node: torch.fx.Node) -> tuple[Size, ...] | None:
        """Local shape that torch recorded for a tensor-valued node."""
        value = node.meta.get("val")
        return self.shape(value) if isinstance(value, torch.Tensor) else None

    def shape(self, recorded: torch.Tensor) -> tuple[Size, ...]:
        return tuple(map(self.size, recorded.shape))

    def number(self, value: Any) -> Any:
        """A number that torch recorded. Raises ``UnsupportedError`` for one that is read from a tensor."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expression = self.expression(value)
        unknown = expression.free_symbols - self._symbols - set(self._program.coordinates) - self._decided.keys()
        if unknown and unknown - self.counts.views.keys():
            raise UnsupportedError(UNREPRESENTABLE, f"the number `{expression}` is read from a tensor")
        expression = expression.xreplace({**self._program.size_values, **self._decided})
        return int(expression) if getattr(expression, "is_Integer", False) else expression

    def is_unknown(self, expression: sympy.Basic) -> bool:
        """Whether a number depends on what is read from a tensor."""
        return bool(expression.free_symbols - self._symbols - set(self._program.coordinates) - self._decided.keys())

    def decide(self, recorded: torch.Tensor, shape: Sequence[Size]) -> None:
        """Take sizes that torch leaves open in what a call gives for those that its declaration proves."""
        for size, known in zip(recorded.shape, shape, strict=False):
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            if isinstance(symbol, sympy.Symbol) and self.is_unknown(symbol):
                self._decided[symbol] = known

    def note_count(self, number: torch.SymInt, value: Any) -> None:
        """A number that the program reads from a tensor. Raises ``UnsupportedError`` where it is read as another."""
        symbol = number.node.expr
        if isinstance(symbol, sympy.Symbol) and symbol not in self._symbols and isinstance(value, View):
            if self.counts.views.setdefault(symbol, value) != value:
                raise UnsupportedError(UNREPRESENTABLE, f"the number `{symbol}` is read from two tensors")

    def _lengths(self) -> set[sympy.Basic]:
        """Symbols that are sizes of tensors: torch raises an error where one is below zero."""
        return {
            size.node.expr
            for node in self._program.graph.graph.nodes
            for value in tensors_of(node.meta.get("val"))
            for size in value.shape
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol)
        }
