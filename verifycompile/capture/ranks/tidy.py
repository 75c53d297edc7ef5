"""Small rewrites of a functional graph after which the graphs of several ranks look alike.

A rank that takes its piece of a split names a piece by its number, and leaves the others unused: written as a slice,
the piece differs between ranks by numbers only. What nobody reads is dropped, collectives excepted.
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
_UNWRITTEN = (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default)


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
    """Drop those of ``nodes`` that only move or reserve memory, and that nobody reads any more."""
    for node in nodes:
        if node.op == "call_function" and not node.users and node.target in (*_VIEWS, *_UNWRITTEN):
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
