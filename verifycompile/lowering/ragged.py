"""Calls with rows whose number or order is read from data: their values, and what torch recorded of them."""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.ir.algebra import CONTRACT, open_view, reapply
from verifycompile.ir.term import View
from verifycompile.lowering.checks import check_stored, check_type
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import DECIDES_SIZE, dtype_of, dtypes_of, sorts, tensors_of
from verifycompile.lowering.sizes import Sizes
from verifycompile.lowering.undeclared import custom_arguments, recognised
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.registry import UNREPRESENTABLE, RandomError, UnsupportedError, declaration_of
from verifycompile.rewrites.rows.ragged import call_ragged
from verifycompile.rewrites.rows.row_values import Filled, Ragged, Sorted, Unsorted
from verifycompile.rewrites.rows.rows import laid_out
from verifycompile.rewrites.values import ReadRows, are_read_rows
from verifycompile.torch_interface.operators.schema import draws_random_numbers


class ReadRowsCalls:
    """Such calls of a program that is being lowered."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def are_read_by(self, node: torch.fx.Node) -> bool:
        """Whether an operand or a size of a call is of a length that the program reads from a tensor."""
        values, sizes = self._lowering.values, self._lowering.sizes
        operands = [values.get(operand) for operand in node.all_input_nodes]
        if any(are_read_rows(value) or sizes.counts.occur_in(value) for value in operands):
            return True
        return sorts(node) or (_has_unknown_size(sizes, node) and node.target not in DECIDES_SIZE)

    def call(self, node: torch.fx.Node) -> Any:
        """The value of such a call. Raises ``UnsupportedError``."""
        if draws_random_numbers(node.target, node.args, node.kwargs):
            raise RandomError(f"`{node.target}`")
        lowering, builder, sizes = self._lowering, self._lowering.builder, self._lowering.sizes
        args = [lowering.argument(a, False) for a in node.args]
        kwargs = {k: lowering.argument(a, False) for k, a in node.kwargs.items()}
        builder.call = Call(dtypes_of(node), None, dtype_of(node))
        check_type(node, builder.call, lowering.program.coordinates)
        function = recognised(node.target) if declaration_of(node.target) is None else None
        if function is None:
            value = call_ragged(builder, sizes.counts, node.target, args, kwargs)
        else:
            value = function.call_of_rows(builder, sizes.counts, custom_arguments(lowering, node))
        recorded = tensors_of(node.meta.get("val"))
        for found, tensor in zip(value if isinstance(value, tuple) else (value,), recorded, strict=True):
            check_ragged(builder, sizes, node, found, tensor)
        lowering.note_casts(node, builder.call)
        return value

    def size(self, value: Any, dim: int, recorded: Any) -> Any:
        """A size of rows, where it is the one ``recorded``. Raises ``UnsupportedError``."""
        if isinstance(value, Ragged) and dim == value.dim:
            builder, counts = self._lowering.builder, self._lowering.sizes.counts
            number = counts.number(builder, recorded)
            if builder.sum(value.rows.present, [0]) in (number, _computed_alone(builder, number)):
                return recorded
        raise UnsupportedError(UNREPRESENTABLE, f"the number `{recorded}` of rows is not known")

    def laid_out(self, value: ReadRows) -> View | None:
        """Such rows as a tensor of known sizes, where they can be written as one."""
        if not isinstance(value, (Ragged, Unsorted)):
            return None
        self._lowering.builder.call = Call()
        return laid_out(self._lowering.builder, self._lowering.sizes.counts, value)

    def laid_out_operands(self, node: torch.fx.Node) -> dict[torch.fx.Node, View] | None:
        """The operands of a call that are such rows as tensors of known sizes; None where one cannot be written so."""
        found: dict[torch.fx.Node, View] = {}
        for operand in node.all_input_nodes:
            value = self._lowering.values.get(operand)
            if isinstance(value, (Ragged, Unsorted)):
                view = self.laid_out(value)
                if view is None:
                    return None
                found[operand] = view
            elif are_read_rows(value) or self._lowering.sizes.counts.occur_in(value):
                return None
        return None if _has_unknown_size(self._lowering.sizes, node) else found


def _computed_alone(builder: Builder, number: View) -> View:
    """A number that was computed with others, of which it is one, as it is computed by itself."""
    if number.term.operation is not CONTRACT:
        return number
    opened = open_view(number)
    return reapply(builder.pool, number, opened, opened.operands).scaled(number.coefficient)


def _has_unknown_size(sizes: Sizes, node: torch.fx.Node) -> bool:
    """Whether a size of what a node gives is read from a tensor."""
    recorded = [size for value in tensors_of(node.meta.get("val")) for size in value.shape]
    return any(isinstance(s, torch.SymInt) and sizes.is_unknown(sizes.expression(s)) for s in recorded)


def check_ragged(builder: Builder, sizes: Sizes, node: torch.fx.Node, value: Any, recorded: torch.Tensor) -> None:
    """All sizes but the number of rows must be those that torch recorded; a new symbol is that number.

    Raises ``UnsupportedError``.
    """
    shape = [size.node.expr if isinstance(size, torch.SymInt) else size for size in recorded.shape]
    unknown = [d for d, size in enumerate(shape) if not isinstance(size, int) and sizes.is_unknown(size)]
    if isinstance(value, (Sorted, Unsorted)):
        _require_places(node, value, shape)
        return
    view = value.row if isinstance(value, Filled) else value.view if isinstance(value, Ragged) else value
    check_stored(node, view, recorded)
    found = list(builder.shape(view))
    sorting = sizes.counts.sortings.get(value.rows) if isinstance(value, Ragged) else None
    if isinstance(value, Ragged) and sorting is not None and not unknown:
        found[value.dim] = sorting.length
    expected = [value.dim] if are_read_rows(value) and (sorting is None or unknown) else []
    if len(found) == len(shape) and unknown == expected:
        for dim in unknown:
            found[dim] = shape[dim]
        if all(sympy.simplify(sympy.sympify(a) - b) == 0 for a, b in zip(found, shape, strict=True)):
            for dim in unknown:
                symbol = shape[dim]
                if isinstance(value, Ragged) and isinstance(symbol, sympy.Symbol):
                    sizes.counts.views.setdefault(symbol, builder.sum(value.rows.present, [0]))
            return
    raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, its declaration {found}")


def _require_places(node: torch.fx.Node, value: Sorted | Unsorted, shape: list[Any]) -> None:
    """Of all rows there are as many as torch recorded; of rows that are read from data, some number."""
    fits = len(shape) == 1 and (value.source is not None or sympy.simplify(shape[0] - value.length) == 0)
    if not fits:
        raise UnsupportedError(UNREPRESENTABLE, f"`{node.target}` has shape {shape}, where rows are sorted")
