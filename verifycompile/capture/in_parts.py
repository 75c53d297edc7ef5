"""Programs whose ranks cut tensors elsewhere than at the ends of shards: their slices are assembled again.

A rank that joins its shard with its neighbour's edge reads a stretch that begins in another shard. The slices of such a
dimension, those of the spec among them, are written as copies, which are lowered to windows.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.capture.numbers.known_positions import copied, with_known_positions_as_slices
from verifycompile.capture.ranks.merged_collectives import divides_unevenly, span_of
from verifycompile.program import Program

aten = torch.ops.aten

_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
_JOINS = (aten.cat.default, aten.stack.default)
_CUTS = (aten.slice.Tensor, aten.select.int, aten.unbind.int)
_BOUNDS = (aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar)
_MOST_PIECES = 16
_MOVES = (aten.constant_pad_nd.default, aten.roll.default)
_READS = (aten.index.Tensor, aten.index_select.default, aten.gather.default)
_PLACED = (*_READS, aten.index_put.default, aten.index_copy.default)
"""What reads or writes at places, which may be known."""


def in_parts(spec: Program, merged: Program) -> Iterator[tuple[Program, Program]]:
    """Both programs with slices as windows: of the dimensions that are cut unevenly, then of all that are sharded too.

    At last as they are, where pieces are joined in an order of their own, as those of a zig-zag layout, or a bound
    divides positions. ``merged``: the programs of all ranks as one. Values stay the same.
    """
    spec, merged = (with_known_positions_as_slices(program) for program in (spec, merged))
    nodes = [node for program in (spec, merged) for node in program.graph.graph.nodes]
    cut = {size for node in nodes for size in _cut_by(node)}
    sharded = {span[0] for node in nodes if (span := _span(node)) is not None and _is_input(node.args[0])}
    for sizes in (cut, cut | sharded) if sharded - cut else (cut,):
        if sizes:
            yield _copied(spec, sizes), dataclasses.replace(_copied(merged, sizes), piecewise=True)
    if any(_joins_pieces(node) or node.target in _BOUNDS for node in nodes):
        each = _fitting_slices(nodes)
        yield _in_equal_pieces(spec, each), dataclasses.replace(_in_equal_pieces(merged, each), piecewise=True)


def joins_and_cuts(*programs: Program) -> bool:
    """Whether something is assembled from parts, as fused weights are, in one of the programs or between them."""
    targets = {node.target for program in programs for node in program.graph.graph.nodes}
    return not targets.isdisjoint((*_MOVES, *_PLACED)) or (
        not targets.isdisjoint(_JOINS) and not targets.isdisjoint((*_SPLITS, *_CUTS))
    )


def cuts_unevenly(program: Program) -> bool:
    """Whether a program cuts, or assembles, a dimension elsewhere than at multiples of a part's length."""
    return any(True for node in program.graph.graph.nodes for _ in _cut_by(node))


def _fitting_slices(nodes: Iterable[torch.fx.Node]) -> dict[int, int]:
    """The length that fits all slices of each size."""
    spans = [span for node in nodes if (span := _span(node)) is not None]
    return {size: math.gcd(size, *(n for other, *ends in spans if other == size for n in ends)) for size, _, _ in spans}


def _in_equal_pieces(program: Program, lengths: Mapping[int, int]) -> Program:
    """The program with longer slices assembled from pieces, of a length for each size of the dimension."""
    changed, _ = copied(program)
    graph = changed.graph.graph
    for node in list(graph.nodes):
        span = _span(node)
        if span is None or not (length := lengths[span[0]]) < span[2] <= _MOST_PIECES * length:
            continue
        dim, value = node.args[1] if len(node.args) > 1 else 0, node.meta["val"]
        pieces: list[torch.fx.Node] = []
        with graph.inserting_before(node):
            for start in range(span[1], span[1] + span[2], length):
                pieces.append(graph.call_function(node.target, (node.args[0], dim, start, start + length)))
                pieces[-1].meta["val"] = value.narrow(dim, start - span[1], length)
            whole = graph.call_function(aten.cat.default, (pieces, dim))
        whole.meta = {**node.meta, "val": value.new_empty(value.shape)}
        node.replace_all_uses_with(whole)
    return changed


def _joins_pieces(node: torch.fx.Node) -> bool:
    """Whether a node concatenates pieces that are cut from something else."""
    return node.target is aten.cat.default and any(
        operand.target in (aten.slice.Tensor, aten.slice_copy.Tensor, operator.getitem)
        for operand in node.all_input_nodes
    )


def _is_input(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "placeholder"


def _copied(program: Program, cut: Container[int]) -> Program:
    changed, nodes = copied(program)
    for node, copy in nodes.items():
        span, piece = _span(node), _piece(node, cut)
        if span is not None and span[0] in cut:
            copy.target = aten.slice_copy.Tensor
        elif piece is not None:
            copy.target, copy.args = aten.slice_copy.Tensor, (nodes[piece[0]], *piece[1:])
    return changed


def _cut_by(node: torch.fx.Node) -> Iterator[int]:
    """Sizes of the dimensions that a node cuts, or assembles, elsewhere than at multiples of a part's length."""
    span = _span(node)
    if span is not None:
        size, start, length = span
        if divides_unevenly(start, length, size):
            yield size
    if node.target in _SPLITS:
        source, dim = _source_and_dim(node)
        size, lengths = source.meta["val"].shape[dim], [value.shape[dim] for value in node.meta["val"]]
        is_known = all(isinstance(number, int) for number in (size, *lengths))
        if is_known and any(divides_unevenly(sum(lengths[:k]), length, size) for k, length in enumerate(lengths)):
            yield size
    if node.target in _MOVES:
        source = node.args[0]
        before: tuple[Any, ...] = tuple(source.meta["val"].shape) if isinstance(source, torch.fx.Node) else ()
        for old, new in zip(before, node.meta["val"].shape, strict=False):
            if isinstance(old, int) and isinstance(new, int) and (old != new or node.target is aten.roll.default):
                yield from (old, new)


def _span(node: torch.fx.Node) -> tuple[int, int, int] | None:
    return span_of(node) if node.target in (aten.slice.Tensor, aten.slice_copy.Tensor) else None


def _source_and_dim(split: torch.fx.Node) -> tuple[Any, Any]:
    return split.args[0], split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)


def _piece(node: torch.fx.Node, cut: Container[int]) -> tuple[torch.fx.Node, int, int, int] | None:
    """A piece of a split as source, dimension and ends, where the dimension is one of those that are cut."""
    split = node.args[0] if node.target is operator.getitem else None
    if not isinstance(split, torch.fx.Node) or split.target not in _SPLITS or not isinstance(node.args[1], int):
        return None
    source, dim = _source_and_dim(split)
    if not isinstance(size := source.meta["val"].shape[dim], int) or size not in cut:
        return None
    lengths = [value.shape[dim] for value in split.meta["val"]]
    number = range(len(lengths))[node.args[1]]
    return source, dim, sum(lengths[:number]), sum(lengths[: number + 1])
