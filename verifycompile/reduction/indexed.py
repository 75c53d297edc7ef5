"""Dimensions whose elements are picked by numbers: what a number may be ties sizes that meet at no node.

The experts that a router chose are rows of their weights; the positions of a sequence are rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.reduction.recorded import dimensions_of, named_arguments, tensors_of
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.walks import reached

_RANGES = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
_ALONG = frozenset(
    {
        *("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy"),
        *("index_fill", "index_reduce", "_unsafe_index", "take_along_dim"),
    }
)
_ROWS = frozenset({"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"})
_BY_LISTS = frozenset({"index", "index_put", "_unsafe_index_put", "_unsafe_index"})
_PICK = _ALONG | _ROWS | _BY_LISTS | {"embedding", "embedding_dense_backward"}


def indexed(node: torch.fx.Node) -> Iterator[tuple[int, torch.fx.Node | None]]:
    """The sizes of dimensions whose elements a node picks by numbers, each with the node of these numbers."""
    name = (operator_name(node.target) or "").partition(".")[2].partition(".")[0]
    if name not in _PICK:
        return
    arguments = named_arguments(node)
    operand = arguments.get("self")
    shape = dimensions_of(operand)[0] if isinstance(operand, torch.fx.Node) and dimensions_of(operand) else ()
    found: list[tuple[int | None, Any]] = []
    if name == "embedding":
        found = [(dimensions_of(arguments["weight"])[0][0], arguments.get("indices"))]
    elif name == "embedding_dense_backward":
        found = [(dimensions_of(node)[0][0], arguments.get("indices"))]
    elif name in _BY_LISTS:
        found = [(size, index) for size, index in zip(shape, _indices(arguments), strict=False) if index is not None]
    elif name in _ALONG and shape and type(arguments.get("dim")) is int:
        found = [(shape[arguments["dim"]], arguments.get("index"))]
    elif name in _ROWS and shape:
        found = [(shape[min(1, len(shape) - 1)], arguments.get("target"))]
    for size, index in found:
        if size is not None:
            yield size, index if isinstance(index, torch.fx.Node) else None


def _indices(arguments: Mapping[str, Any]) -> list[Any]:
    indices = arguments.get("indices")
    return list(indices) if isinstance(indices, (list, tuple)) else []


def ranges_in(index: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The ranges of numbers that an index is computed from."""
    met = reached(filter(_is_whole, [index]), lambda node: filter(_is_whole, node.all_input_nodes))
    return (node for node in met if operator_name(node.target) in _RANGES)


def _is_whole(node: torch.fx.Node) -> bool:
    dtypes = [value.dtype for value in tensors_of(node.meta.get("val"))]
    return not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes)
