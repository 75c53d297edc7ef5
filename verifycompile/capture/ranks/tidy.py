"""Small rewrites of a functional graph after which the graphs of several ranks look alike.

A rank that takes its piece of a split names a piece by its number, and leaves the others unused: written as a slice,
the piece differs between ranks by numbers only. So is its gradient, which autograd joins to zeros on the ranks' own
places. What nobody reads is dropped, collectives excepted.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.fx

from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)  # noqa: SLF001 - names of operators
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_SLICES: dict[Any, int] = {aten.slice.Tensor: 1, aten.slice_backward.default: 2}
"""Calls that cut a tensor or put one among zeros, and the place of the dimension among their arguments."""
_UNWRITTEN = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)
_IDLE = (*_VIEWS, *_UNWRITTEN, *_ZEROS, *_SLICES, aten.expand.default)


def tidy(graph: torch.fx.GraphModule, kept: Collection[torch.fx.Node]) -> None:
    """Rewrite ``graph`` in place. ``kept``: nodes that are read from outside of the graph."""
    _drop_unused(graph.graph, kept)
    for node in list(graph.graph.nodes):
        if any(user in kept for user in node.users):
            continue
        if node.op == "call_function" and node.target in (
            aten.split.Tensor,
            aten.split_with_sizes.default,
            aten.unbind.int,
        ):
            _write_as_slices(graph.graph, node)
    _drop_unused(graph.graph, kept)
    graph.recompile()


def without_copies(graph: torch.fx.GraphModule) -> None:
    """Read what a copy was made of in place of the copy, where the two are alike; in place.

    A list of buffers, one of them a value that is already there (``buffers[rank] = x``), into which a collective
    writes: every rank copies the same values, into buffers that come from elsewhere. Outputs stay the nodes that
    they are.
    """
    for node in list(graph.graph.nodes):
        source = _source(node)
        if source is None or any(user.op == "output" for user in node.users):
            continue
        operands = node.all_input_nodes
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)
        _drop_unread(graph.graph, operands)
    graph.recompile()


def with_joined_slices(graph: torch.fx.GraphModule) -> None:
    """Write a value among zeros as the gradient of a slice, and a slice of a slice as one; in place.

    ``weight.chunk(2)[1].chunk(ranks)[rank]`` and ``weight[start:][:size]`` differ between ranks in other calls, or in
    the sizes of what lies between; as one slice of the weight, in two numbers. Outputs stay the nodes that they are.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        operands = node.all_input_nodes
        if node.target in (aten.cat.default, aten.stack.default):
            _write_as_gradient(node)
        if node.target in _SLICES:
            _join_slices(node)
        _drop_unread(graph.graph, operands)
    graph.recompile()


def _write_as_gradient(joined: torch.fx.Node) -> None:
    """One value that is joined to zeros is the gradient of a slice, or of a selection, whose gradient is the value."""
    parts: Any = joined.args[0]
    value, values = joined.meta.get("val"), [part.meta.get("val") for part in parts]
    rest = [index for index, part in enumerate(parts) if not _is_zero(part)]
    if len(rest) != 1 or len(parts) == 1 or not isinstance(value, torch.Tensor):
        return
    if not all(isinstance(part, torch.Tensor) and part.dtype == value.dtype for part in values):
        return
    shape: list[Any] = list(value.shape)
    if not all(isinstance(size, int) for size in shape):
        return
    (index,) = rest
    if parts[index].target is aten.slice.Tensor:  # rows that are shifted, which autograd does not make
        return
    dim: Any = joined.args[1] if len(joined.args) > 1 else joined.kwargs.get("dim", 0)
    places = (index,)
    if joined.target is aten.cat.default:
        if any(part.dim() != value.dim() for part in values):
            return
        start = sum(part.shape[dim] for part in values[:index])
        places = (start, start + values[index].shape[dim], 1)
    joined.target = aten.select_backward.default if len(places) == 1 else aten.slice_backward.default
    joined.args = (parts[index], shape, dim, *places)
    joined.kwargs = {}


def _is_zero(node: torch.fx.Node) -> bool:
    made = node.args[0] if node.target is aten.expand.default else node
    return isinstance(made, torch.fx.Node) and made.target in _ZEROS


def _join_slices(outer: torch.fx.Node) -> None:
    """``x[a:b][c:d]`` as ``x[a + c:a + d]``, and its gradient, which has the slices in the other order."""
    inner = outer.args[0]
    if not isinstance(inner, torch.fx.Node) or inner.target is not outer.target:
        return
    first, second = _places(inner), _places(outer)
    if first is None or second is None or first[0] != second[0]:
        return
    dim = first[0]
    of_whole, of_part = (first, second) if outer.target is aten.slice.Tensor else (second, first)
    start = of_whole[1] + of_part[1]
    places = (dim, start, start + of_part[2] - of_part[1], 1)
    shape = () if outer.target is aten.slice.Tensor else (outer.args[1],)
    outer.args = (inner.args[0], *shape, *places)
    outer.kwargs = {}


def _places(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """Dimension, start and end of a slice without steps, as they are counted from the front; None where not known."""
    first = _SLICES[node.target]
    dim, start, end, step = (*node.args[first:], *(0, None, None, 1)[len(node.args) - first :])
    cut: Any = node.args[0] if node.target is aten.slice.Tensor else node
    whole = cut.meta.get("val") if isinstance(cut, torch.fx.Node) else None
    if node.kwargs or step != 1 or not isinstance(dim, int) or not isinstance(whole, torch.Tensor):
        return None
    size: Any = whole.shape[dim]
    if not isinstance(size, int) or not all(end is None or type(end) is int for end in (start, end)):
        return None
    begin, stop, _ = slice(start, end).indices(size)
    return dim % whole.dim(), begin, max(begin, stop)


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """The earlier node whose value, shape and dtype included, ``node`` repeats."""
    if node.op != "call_function":
        return None
    source: Any = None
    if node.target is aten.copy.default:
        source = node.args[1]
    elif node.target in _VIEWS and isinstance(node.args[0], torch.fx.Node) and node.args[0].target in _VIEWS:
        source = node.args[0].args[0]
    if not isinstance(source, torch.fx.Node):
        return None
    ours, theirs = node.meta.get("val"), source.meta.get("val")
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None
    alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.device == theirs.device
    return source if alike else None


def _drop_unread(graph: torch.fx.Graph, nodes: Iterable[torch.fx.Node]) -> None:
    """Drop those of ``nodes`` that only move, clear or reserve memory, and that nobody reads any more."""
    for node in nodes:
        if node.op == "call_function" and not node.users and node.target in _IDLE:
            operands = node.all_input_nodes
            graph.erase_node(node)
            _drop_unread(graph, operands)


def _drop_unused(graph: torch.fx.Graph, kept: Collection[torch.fx.Node]) -> None:
    for node in reversed(list(graph.nodes)):
        if node.users or node in kept or node.op in ("placeholder", "output"):
            continue
        library = (operator_name(node.target) or "").partition(".")[0]
        if library not in COLLECTIVE_NAMESPACES and library != "_dtensor":
            graph.erase_node(node)


def _write_as_slices(graph: torch.fx.Graph, split: torch.fx.Node) -> None:
    """Pieces as slices, where not all are used: a concatenation of all pieces is better read from the split."""
    pieces: list[Any] = list(split.meta.get("val", ()))
    used = {str(user.args[1]) for user in split.users if user.target is operator.getitem}
    if len(used) >= len(pieces) or len(used) != len(split.users):
        return
    source = split.args[0]
    assert isinstance(source, torch.fx.Node)
    dim = split.args[2 if split.target is not aten.unbind.int else 1 :] or (split.kwargs.get("dim", 0),)
    position = dim[0]
    assert isinstance(position, int)
    for user in list(split.users):
        index = user.args[1]
        assert isinstance(index, int)
        with graph.inserting_before(user):
            if split.target is aten.unbind.int:
                piece = graph.call_function(aten.select.int, (source, position, index))
            else:
                sizes = [value.shape[position] for value in pieces]
                if not all(isinstance(size, int) for size in sizes):
                    return
                start = sum(sizes[:index])
                piece = graph.call_function(aten.slice.Tensor, (source, position, start, start + sizes[index]))
            piece.meta.update(user.meta)
            user.replace_all_uses_with(piece)
            graph.erase_node(user)
