"""Calls of operators without a declaration, and those that a declaration refuses.

An operator of another library may be a function that it was found equal to
(``rewrites/operators/custom_operators.py``); any other one is what torch decomposes it into (``unfolding.py``), node by
node, in place of the call.
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Iterable
from typing import Any

import torch.fx

from verifycompile.ir.build import ShapeError
from verifycompile.ir.relabel import UnalignedError
from verifycompile.ir.scalar import NonFiniteScalarError
from verifycompile.lowering.checks import check_operands, check_result, check_type
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import dtype_of, dtypes_of, is_size
from verifycompile.lowering.unfolding import Unfolding
from verifycompile.program import Program
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operators.custom_operators import Recognised, recognise
from verifycompile.rewrites.registry import UNDECLARED, UndefinedError, UnsupportedError, declaration_of
from verifycompile.torch_interface.communication.in_flight import in_flight, is_mark
from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.custom import is_custom
from verifycompile.torch_interface.operators.decompositions import has_decomposition
from verifycompile.torch_interface.operators.schema import names_of

_REFUSALS = (UnsupportedError, UnalignedError, ShapeError)


class UndeclaredCalls:
    """Such calls of a program that is being lowered."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._unfolding = Unfolding(lowering.sizes, lowering.program.coordinates)

    def call(self, node: torch.fx.Node) -> Any:
        """The value of a call without a declaration. Raises ``UnsupportedError``."""
        function = recognised(node.target)
        return self._undeclared_call(node) if function is None else self._custom_call(node, function)

    def unfolded_or(self, node: torch.fx.Node, refusal: Exception) -> Any:
        """What torch's decomposition of a call gives that its declaration refuses; else the refusal is raised."""
        try:
            return self._unfolded(node)
        except (UndefinedError, NonFiniteScalarError):
            raise
        except _REFUSALS:
            raise refusal from None

    def _undeclared_call(self, node: torch.fx.Node) -> Any:
        lowering = self._lowering
        call = lowering.builder.call = Call(dtypes_of(node), lowering.sizes.shape_of(node), dtype_of(node))
        try:
            check_type(node, call, lowering.program.coordinates)
            check_operands(node, call, any_precision=lowering.side == "spec")
            return self._unfolded(node)
        except UndefinedError:
            raise
        except _REFUSALS as error:
            raise UnsupportedError(UNDECLARED, _undeclared(node, str(error))) from error

    def _custom_call(self, node: torch.fx.Node, function: Recognised) -> Any:
        """An operator of another library, read as a function that it was found equal to."""
        lowering = self._lowering
        operands = custom_arguments(lowering, node)
        call = lowering.builder.call = Call(dtypes_of(node), lowering.sizes.shape_of(node), dtype_of(node))
        check_type(node, call, lowering.program.coordinates)
        value = function.call(lowering.builder, operands)
        check_result(lowering.builder, lowering.sizes, node, value)
        return value

    def _unfolded(self, node: torch.fx.Node) -> Any:
        """The value of a call by the operators that torch decomposes it into. Raises ``UnsupportedError``."""
        lowering, values = self._lowering, self._lowering.values
        operands = [lowering.argument(operand, False) for operand in self._unfolding.operands(node)]
        with self._unfolding.of(node) as decomposition:
            values.update(zip(decomposition.placeholders, operands, strict=True))
            try:
                for call in decomposition.calls:
                    values[call] = self._value_within(call, decomposition.graph)
                results = [
                    lowering.view(result) if isinstance(result, torch.fx.Node) else None
                    for result in decomposition.results
                ]
                self._raise_refusals(decomposition.calls)
                assumptions = self._unfolding.assumptions(node, decomposition)
                lowering.pool.assumptions.update(dict.fromkeys(assumptions))
            finally:
                for inner in (*decomposition.placeholders, *decomposition.calls):
                    values.pop(inner, None)
        return tuple(results) if isinstance(node.meta.get("val"), (list, tuple)) else results[0]

    def _value_within(self, node: torch.fx.Node, graph: torch.fx.GraphModule) -> Any:
        """The value of a node of a decomposition. Raises ``UnsupportedError`` where it has none."""
        if is_size(node):
            value = self._lowering.size_value(node)
        elif node.op == "get_attr":
            value = self._lowering.constant(node, graph)
        elif node.target is python_operator.getitem:
            value = self._lowering.element(node)
        else:
            value = self._lowering.call(node)
        self._raise_refusals([node])
        return value

    def _raise_refusals(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Nodes of a decomposition are no blockers: the call is."""
        blockers = self._lowering.blockers
        refused = [blocker for node in nodes if (blocker := blockers.pop(node, None)) is not None]
        if refused:
            raise UnsupportedError(refused[0].code, refused[0].message)


def is_declared(node: torch.fx.Node, program: Program) -> bool:
    """Whether a call is one that can be lowered, as far as its operator alone says."""
    if is_size(node) or node.name in program.groups or node.target is python_operator.getitem:
        return True
    if declaration_of(node.target) is not None or recognised(node.target) is not None:
        return True
    return has_decomposition(node.target)


def recognised(target: object) -> Recognised | None:
    """The function that an operator of another library was found equal to, or None."""
    return recognise(target) if is_custom(target) else None


def custom_arguments(lowering: Lowering, node: torch.fx.Node) -> list[Any]:
    """The arguments in the order of the schema."""
    arguments = by_name(node.target, node.args, node.kwargs)
    return [lowering.argument(arguments[name], False) for name in names_of(node.target)]


def _undeclared(node: torch.fx.Node, refusal: str) -> str:
    if is_mark(node, in_flight):
        return "a tensor that a collective writes is read before the program waits for it, or where it stays undefined"
    message = f"operator `{node.target}` has no declaration"
    return f"{message}, and torch's decomposition of it is refused: {refusal}" if refusal else message
