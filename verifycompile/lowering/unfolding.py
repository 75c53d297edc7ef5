"""Calls that torch unfolds: which graph computes one, and whether what the graph gives is what was recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.size import Size
from verifycompile.lowering.recorded import reads_memory
from verifycompile.lowering.sizes import Sizes
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError
from verifycompile.torch_interface.operators.decompositions import (
    Decomposition,
    NotDecomposedError,
    Operand,
    decompose,
)
from verifycompile.torch_interface.operators.derivation import is_derived_number

DEEPEST = 12
"""Decompositions of operators in decompositions."""

UNFOLDED = "what torch decomposes it into: the two were not compared on numbers"


class Unfolding:
    """The decompositions of one program's calls. Within one, no call of the same operator is unfolded again."""

    def __init__(self, sizes: Sizes, coordinates: Collection[sympy.Basic]) -> None:
        self._sizes, self._coordinates = sizes, coordinates
        self._open: list[object] = []

    @contextlib.contextmanager
    def of(self, node: torch.fx.Node) -> Generator[Decomposition]:
        """The graph that computes a call, while its nodes are lowered. Raises ``UnsupportedError``."""
        if node.target in self._open or len(self._open) >= DEEPEST:
            raise UnsupportedError(UNREPRESENTABLE, "")
        found = self._decomposition(node)
        self._open.append(node.target)
        try:
            with self._sizes.reading(found.symbols):
                yield found
        finally:
            self._open.pop()

    def assumptions(self, node: torch.fx.Node, decomposition: Decomposition) -> list[str]:
        """What is assumed where a call is its decomposition. Raises ``UnsupportedError`` where the two differ."""
        with _as_refusals():
            text = f"operator `{node.target}` is {UNFOLDED}"
            return [] if decomposition.is_compared() else [Assumption(text, AssumptionKind.OPERATOR)]

    def operands(self, node: torch.fx.Node) -> list[Any]:
        """The arguments of a call that its decomposition has placeholders for."""
        leaves = tree_leaves((node.args, node.kwargs))
        return [leaf for leaf in leaves if isinstance(self._described(leaf), (Operand, sympy.Expr))]

    def _decomposition(self, node: torch.fx.Node) -> Decomposition:
        """Results must be of the shapes and dtypes that torch recorded for the call, on the CPU or on a GPU."""
        recorded = node.meta.get("val")
        expected = [self._outline(value) for value in (recorded if isinstance(recorded, (list, tuple)) else [recorded])]
        found, given = self._decomposition_on("cpu", node)
        if given != expected:
            on_gpu, given_there = self._decomposition_on("cuda", node)
            if given_there != expected:
                text = f"it gives {_shown(given)} where torch recorded {_shown(expected)}"
                raise UnsupportedError(UNREPRESENTABLE, text)
            return on_gpu
        return found

    def _decomposition_on(self, device: str, node: torch.fx.Node) -> tuple[Decomposition, list[Any]]:
        """The decomposition, and the outlines of its results."""
        args = [self._described(argument) for argument in node.args]
        kwargs = {name: self._described(argument) for name, argument in node.kwargs.items()}
        with _as_refusals():
            found = decompose(node.target, args, kwargs, device)
        if found.symbols and self._sizes.reads_counts:
            raise UnsupportedError(UNREPRESENTABLE, "sizes that are no numbers, among those that are read from tensors")
        for call in found.calls:
            if reads_memory(call):
                raise UnsupportedError(UNREPRESENTABLE, f"`{call.target}` reads its operand through its memory")
        with self._sizes.reading(found.symbols):
            values = [r.meta.get("val") if isinstance(r, torch.fx.Node) else r for r in found.results]
            return found, [self._outline(value) for value in values]

    def _described(self, argument: Any) -> Any:
        """An argument without its content."""
        if isinstance(argument, torch.fx.Node):
            argument = argument.meta.get("val")
            if argument is None:
                raise UnsupportedError(UNREPRESENTABLE, "an argument of which nothing is recorded")
        if isinstance(argument, torch.Tensor):
            return Operand(tuple(self._known(size) for size in argument.shape), argument.dtype)
        if isinstance(argument, (list, tuple)):
            return [self._described(item) for item in argument]
        return self._known(argument)

    def _known(self, value: Any) -> Size:
        """A size or number that both programs have in common. Raises ``UnsupportedError`` for any other one."""
        if not is_derived_number(value):
            return value
        expression = self._sizes.expression(value)
        if self._sizes.is_unknown(expression) or not isinstance(value, torch.SymInt):
            raise UnsupportedError(UNREPRESENTABLE, f"the number `{expression}` is read from a tensor")
        found = self._sizes.size(value)
        if isinstance(found, sympy.Basic) and not found.free_symbols.isdisjoint(self._coordinates):
            raise UnsupportedError(UNREPRESENTABLE, f"the number `{found}` depends on the rank")
        return found

    def _outline(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return Operand(tuple(self._sizes.size(size) for size in value.shape), value.dtype)


@contextlib.contextmanager
def _as_refusals() -> Generator[None]:
    try:
        yield
    except NotDecomposedError as error:
        raise UnsupportedError(UNREPRESENTABLE, str(error)) from error


def _shown(values: list[Any]) -> str:
    found = [f"{v.dtype}{list(v.shape)}" if isinstance(v, Operand) else str(v) for v in values]
    return ", ".join(found).replace("torch.", "")
