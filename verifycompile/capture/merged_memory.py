"""Operators that read their operand through its memory, where what they read was assembled from other ranks' values.

A rank's value lies in memory of its own. In the program of all ranks it is a slice of the whole, a value of another
rank, or what a copy was made of, all of which lie elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from verifycompile.capture.merged_collectives import MergedNodes, UnmergeableError
from verifycompile.ir.size import product
from verifycompile.torch_interface.schema import arguments_of

aten = torch.ops.aten


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
