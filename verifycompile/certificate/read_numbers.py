"""Numbers that calls read from tensors: no kernel says them, so each is recorded as a symbol of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx

from verifycompile.certificate.annotations import AnnotationError, numbers_of, sizes_of
from verifycompile.lowering.recorded import DECIDES_SIZE
from verifycompile.program import Program
from verifycompile.torch_interface.operators.derivation import is_derived_number


class ReadNumbers:
    """The numbers that a program reads, in one run of its calls."""

    def __init__(self, program: Program) -> None:
        given = [node.meta.get("val") for node in program.graph.graph.find_nodes(op="placeholder")]
        held = {symbol for n in numbers_of(given) if is_derived_number(n) for symbol in n.node.expr.free_symbols}
        self._taken = {*held, *program.coordinates, *program.size_values}
        self._read: dict[sympy.Basic, Hashable] = {}
        """Symbols, and what says which number one is."""

    def check(self, node: torch.fx.Node, derived: Any) -> None:
        """A number that a call reads is recorded as a symbol, another one of each tensor. Raises AnnotationError."""
        found: list[sympy.Basic] = []
        for recorded, number in zip(sizes_of(node.meta["val"]), sizes_of(derived), strict=True):
            if not is_derived_number(number):
                continue
            (symbol,) = number.node.expr.free_symbols
            found.append(symbol)
            own: Any = sympy.sympify(recorded)
            if node.target in DECIDES_SIZE and own.is_Integer and own > 0:
                continue  # the declaration says it, or there is no value
            held = next(iter(own.free_symbols), symbol)
            if number.node.expr.xreplace({symbol: held}) != own:
                raise AnnotationError(f"`{node.name}` is recorded as {own}, and reads a number from a tensor")
            what = _decides(node), found.index(symbol)
            if held in self._taken or self._read.setdefault(held, what) != what:
                raise AnnotationError(f"`{held}` is another number than what `{node.name}` reads from a tensor")


def _decides(node: torch.fx.Node) -> Hashable:
    """What says the number that a call reads from a tensor: of calls that count the same truths, the same."""
    if node.target is torch.ops.aten.index.Tensor:
        return tuple(cast("Sequence[Hashable]", node.args[1]))
    if node.target is torch.ops.aten.nonzero.default:
        return (node.args[0],)
    return node.target, node.args, *node.kwargs.items()
