"""Nodes of a single device's graph as values that collectives take: see ``verifycompile/collectives.py``."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.capture.segments import Simplifier
from verifycompile.ir.size import product
from verifycompile.torch_interface.operators.schema import arguments_of
from verifycompile.torch_interface.source_lines.source import MADE_BY, SOURCE_KEYS

aten = torch.ops.aten


class UnmergeableError(Exception):
    """Something that has no single-device form. ``node``: where, in the graph of one rank."""

    def __init__(self, message: str, node: torch.fx.Node | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node


RANK = "verifycompile_rank"
"""Key of a node's ``meta``: the global rank that runs it."""


class MergedNodes:
    """Makes nodes with recorded shapes. ``uneven``: sizes of dimensions whose parts are not of one size.

    ``rank``: the global rank that the nodes made now belong to, None for all of a group.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.origin: torch.fx.Node | None = None
        self.rank: int | None = None
        self.simplify = Simplifier(self.call)
        self.uneven: set[int] = set()

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A new node, with the place in the user's source of ``origin``, or a simpler one that has its value."""
        return self.simplify(self.made(target, *args, **kwargs))

    def made(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A new node, with the place in the user's source of ``origin``."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = target(*_example(args), **kwargs, **({"device": "meta"} if target in _CREATED else {}))
        if self.origin is not None:
            node.meta.update({key: self.origin.meta[key] for key in SOURCE_KEYS if key in self.origin.meta})
            node.meta[MADE_BY] = self.origin.target
        if self.rank is not None:
            node.meta[RANK] = self.rank
        return node

    def shape(self, value: torch.fx.Node) -> Sequence[int]:
        """Its recorded shape."""
        return value.meta["val"].shape

    def as_row(self, value: torch.fx.Node) -> torch.fx.Node:
        """A value without dimensions as one with one position."""
        return self.call(aten.unsqueeze.default, value, 0)

    def join(self, values: Sequence[torch.fx.Node], dim: int) -> torch.fx.Node:
        """The values one behind the other."""
        return self.call(aten.cat.default, list(values), dim) if len(values) > 1 else values[0]

    def reduce(self, values: Sequence[torch.fx.Node], operation: str) -> torch.fx.Node:
        """Raises ``UnmergeableError`` for an operation, or a dtype, that has no single-device form."""
        operation = operation.lower()
        if len(values) == 1:
            return values[0]
        if operation in ("sum", "avg"):
            if values[0].meta["val"].dtype is torch.bool or (operation == "avg" and not _is_float(values[0])):
                raise UnmergeableError(f"a collective `{operation}` of {values[0].meta['val'].dtype}")
            total = values[0]
            for value in values[1:]:
                total = self.call(aten.add.Tensor, total, value)
            return total if operation == "sum" else self.call(aten.div.Tensor, total, len(values))
        if operation in ("max", "min"):
            extreme = aten.amax.default if operation == "max" else aten.amin.default
            return self.call(extreme, self.call(aten.stack.default, list(values)), [0])
        if operation == "product":
            total = values[0]
            for value in values[1:]:
                total = self.call(aten.mul.Tensor, total, value)
            return total
        raise UnmergeableError(f"a collective with the reduction `{operation}`")

    def part(self, value: torch.fx.Node, dim: int, start: int, length: int) -> torch.fx.Node:
        """``length`` positions of a dimension from ``start`` on."""
        size = value.meta["val"].shape[dim]
        if size == length:
            return value
        if divides_unevenly(start, length, size):
            self.uneven.add(size)
        return self.call(aten.slice.Tensor, value, dim, start, start + length)


_CREATED = (aten.full.default,)


def _is_float(node: torch.fx.Node) -> bool:
    return node.meta["val"].dtype.is_floating_point or node.meta["val"].dtype.is_complex


def _example(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        held = value.meta["val"]
        return torch.empty(tuple(held.shape), dtype=held.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_example(item) for item in value]
    return value


def write_uneven_slices(graph: torch.fx.Graph, uneven: Container[int], as_in_spec: Container[Any]) -> None:
    """Let all slices of a dimension that is divided unevenly be of the form that is assembled again.

    ``uneven``: the sizes of such dimensions. ``as_in_spec``: slices that stay as they are.
    """
    for node in graph.nodes:
        if node.target is aten.slice.Tensor and node not in as_in_spec:
            span = span_of(node)
            if span is not None and span[0] in uneven:
                node.target = aten.slice_copy.Tensor


def divides_unevenly(start: int, length: int, size: int) -> bool:
    """Whether a slice cuts its dimension into pieces of different sizes."""
    return length != 0 and (size % length != 0 or start % length != 0)


def span_of(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """Size of the sliced dimension, first position and length of a slice with step 1 and known bounds."""
    source, result = node.args[0], node.meta.get("val")
    dim = node.args[1] if len(node.args) > 1 else 0
    start = node.args[2] if len(node.args) > 2 else 0
    if len(node.args) > 4 or node.kwargs or not isinstance(source, torch.fx.Node) or not isinstance(dim, int):
        return None
    start = 0 if start is None else start
    size, length = source.meta["val"].shape[dim], result.shape[dim] if isinstance(result, torch.Tensor) else None
    if not isinstance(size, int) or not isinstance(length, int) or not isinstance(start, int):
        return None
    return size, start % size if size else 0, length


# ------------------------------------------------------------------------------------------------ memory that is read
#
# A rank's value lies in memory of its own. In the program of all ranks it is a slice of the whole, a value of another
# rank, or what a copy was made of, all of which lie elsewhere.


def laid_out(nodes: MergedNodes, value: torch.fx.Node, operand: torch.fx.Node) -> torch.fx.Node:
    """A copy of ``value`` whose elements lie, from the first place of its memory on, as ``operand`` lies on its rank.

    Raises ``UnmergeableError`` where there are gaps between them, or several at one place.
    """
    recorded: torch.Tensor = operand.meta["val"]
    shape, strides = tuple(recorded.shape), recorded.stride()
    order = sorted(range(len(shape)), key=lambda d: -strides[d])
    slow_to_fast = [d for d in order if shape[d] != 1]
    for number, d in enumerate(slow_to_fast):
        if strides[d] != product([shape[later] for later in slow_to_fast[number + 1 :]]):
            raise UnmergeableError("a tensor with gaps between its elements that is read through its memory", operand)
    dense = nodes.made(aten.clone.default, nodes.made(aten.permute.default, value, order), **_IN_ORDER)
    return nodes.made(aten.permute.default, dense, [order.index(d) for d in range(len(order))])


_IN_ORDER = {"memory_format": torch.contiguous_format}


def read_from_its_first_element(reader: torch.fx.Node, operand: torch.fx.Node) -> None:
    """Let ``reader`` count places from the first element of its operand, which was not at the first one on its rank."""
    names = [argument.name for argument in arguments_of(reader.target) or ()]
    if "storage_offset" not in names:
        return
    position = names.index("storage_offset")
    found: Any = reader.args[position] if position < len(reader.args) else reader.kwargs.get("storage_offset")
    if found is None:
        return
    place = found - operand.meta["val"].storage_offset()
    if position < len(reader.args):
        reader.update_arg(position, place)
    else:
        reader.update_kwarg("storage_offset", place)
