"""Where the values of a written program lie in memory, derived again where another place was recorded.

The program of all ranks is assembled from their graphs: an input of a rank is a slice of the whole there, and what a
rank got is a value of another one. What was recorded on the ranks holds for neither. No value depends on it but those
of operators that read memory. Where these would find another memory than they were proved with, there is no
certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.fx

from verifycompile.certificate.annotations import AnnotationError, Derived, derived, symbols_of
from verifycompile.certificate.storage import StoredModule, program_from_data
from verifycompile.certificate.writing import order_of, program_to_data
from verifycompile.program import Program
from verifycompile.torch_interface.operators.derivation import is_derived_number
from verifycompile.torch_interface.operators.expressions import recorded_tensor

aten = torch.ops.aten


def with_derived_memory(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """A written program that records where its values lie. Raises AnnotationError where it records other values.

    Symbolic sizes are left as they are: ranks are assembled at sizes that are known.
    """
    program = program_from_data(written)
    if symbols_of(program):
        return written
    order, ends = order_of(cast("StoredModule", program.graph))
    derivation = derived(_Memory, program)
    if not derivation.differs:
        return written
    for node in program.graph.graph.nodes:
        if node.op == "call_function":
            node.meta["val"] = _lying(node.meta["val"], derivation.values.get(node))
            if node.target is aten.view.default and derivation.is_apart:
                node.target = aten.reshape.default
    return program_to_data(program, order, ends)


class _Memory(Derived):
    """Takes note of values that lie otherwise than recorded, and of views of elements too far apart for a view."""

    def __init__(self, program: Program, device: str) -> None:
        super().__init__(program, device)
        self.differs = self.is_apart = False

    def _call(self, node: torch.fx.Node) -> Any:
        try:
            return super()._call(node)
        except AnnotationError:
            if node.target is not aten.view.default:
                raise
            self.differs = self.is_apart = True
            return self._derivation.call(aten.reshape.default, [self._operand(value) for value in node.args], {})

    def lies_alike(self, node: torch.fx.Node, recorded: Any, derived: Any) -> bool:
        self.differs |= not super().lies_alike(node, recorded, derived)
        return True


def _lying(recorded: Any, derived: Any) -> Any:
    """What was recorded, where ``derived`` lies."""
    if isinstance(recorded, (list, tuple)):
        return type(recorded)(map(_lying, recorded, derived))
    if not isinstance(recorded, torch.Tensor) or not isinstance(derived, torch.Tensor):
        return recorded
    memory = (*derived.stride(), derived.storage_offset()) if derived.layout is torch.strided else ()
    if any(map(is_derived_number, (*derived.shape, *memory))) or not memory:
        return recorded
    return recorded_tensor(recorded.shape, recorded.dtype, memory[:-1], memory[-1])
