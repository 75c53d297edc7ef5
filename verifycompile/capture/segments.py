"""Slices, paddings and concatenations along one dimension, followed until they are what was cut.

Ranks with shards of different sizes pad them, gather, and cut the padding off again, each in its own number of steps.
A node made of such steps is a list of segments of earlier nodes; where these are neighbours in the same node again, it
is a slice of that node, or the node itself. Element-wise arithmetic on tensors with equal segments is done on what they
were cut from.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.fx

aten = torch.ops.aten
Node = torch.fx.Node

_KEY = "segments"
_SAME = (
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,  # noqa: SLF001 - an operator
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
)
_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
    aten.div.Tensor: operator.truediv,
    aten.neg.default: operator.neg,
}
_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_FULL: dict[Any, int] = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}


@dataclasses.dataclass(frozen=True)
class Segment:
    """``length`` positions of ``source`` from ``start`` on; of the number ``fill`` where ``source`` is None."""

    source: Node | None
    start: int
    length: int
    fill: float = 0


Segments = tuple[Segment, ...]


class Simplifier:
    """``call``: makes a node of the graph, with its recorded value, and simplifies it."""

    def __init__(self, call: Callable[..., Node]) -> None:
        self._call = call

    def __call__(self, node: Node) -> Node:
        """The node that has the value of ``node``, which was just made; ``node`` itself where it is no simpler one."""
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not _has_fixed_shape(value):
            return node
        if value.numel() == 0:
            return node
        found = self._described(node)
        if found is None:
            return node
        dim, segments = found
        merged = _merged(segments)
        whole = merged[0]
        if len(merged) == 1 and whole.source is not None and whole.length == _size(whole.source, dim):
            return whole.source if _alike(whole.source, value) else node
        node.meta[_KEY] = (dim, merged)
        return node if _is_plain(node, segments, merged) else self._written(node, dim, merged)

    @staticmethod
    def is_composed(node: Any) -> bool:
        """Whether a node is known to be assembled from parts of others."""
        return isinstance(node, Node) and _KEY in node.meta

    def _written(self, node: Node, dim: int, segments: Segments) -> Node:
        """A node that assembles ``segments``; ``node`` where they do not have its dtype."""
        if any(
            part.source is not None and part.source.meta["val"].dtype != node.meta["val"].dtype for part in segments
        ):
            return node
        parts = [self._part(node, dim, part) for part in segments]
        made = parts[0] if len(parts) == 1 else self._call(aten.cat.default, parts, dim)
        made.meta[_KEY] = (dim, segments)
        return made

    def _part(self, node: Node, dim: int, part: Segment) -> Node:
        if part.source is None:
            shape = list(node.meta["val"].shape)
            shape[dim] = part.length
            return self._call(aten.full.default, shape, part.fill, dtype=node.meta["val"].dtype)
        if part.length == _size(part.source, dim):
            return part.source
        return self._call(aten.slice.Tensor, part.source, dim, part.start, part.start + part.length)

    def _described(self, node: Node) -> tuple[int, Segments] | None:
        target = node.target
        if target in (aten.slice.Tensor, aten.slice_copy.Tensor):
            return _slice(node)
        if target is operator.getitem:
            return _piece(node)
        if target is aten.cat.default:
            return _cat(node)
        if target is aten.constant_pad_nd.default:
            return _pad(node)
        if target is aten.slice_scatter.default:
            return _overwritten(node)
        if target in _SAME or target is aten.copy.default:
            return _same(node)
        return self._arithmetic(node)

    def _arithmetic(self, node: Node) -> tuple[int, Segments] | None:
        compute = _ARITHMETIC.get(node.target)
        if compute is None or node.kwargs:
            return None
        shape, dtype = node.meta["val"].shape, node.meta["val"].dtype
        tensors = [value for value in node.args if isinstance(value, Node)]
        if any(value.meta["val"].shape != shape or value.meta["val"].dtype != dtype for value in tensors):
            return None
        dims = [value.meta[_KEY][0] for value in tensors if _KEY in value.meta]
        if not dims:
            return None
        rows = [_along(value, dims[0]) for value in tensors]
        made: dict[tuple[Node | None, ...], Node] = {}
        result: list[Segment] = []
        if len({tuple(part.length for part in row) for row in rows}) != 1:
            return None
        for parts in zip(*rows, strict=True):
            part = self._on_segments(node, dict(zip(tensors, parts, strict=True)), compute, made)
            if part is None:
                return None
            result.append(part)
        return dims[0], tuple(result)

    def _on_segments(
        self,
        node: Node,
        parts: dict[Node, Segment],
        compute: Callable[..., Any],
        made: dict[tuple[Node | None, ...], Node],
    ) -> Segment | None:
        sources = tuple(part.source for part in parts.values())
        first = next(iter(parts.values()))
        if all(source is None for source in sources):
            if not node.meta["val"].dtype.is_floating_point:
                return None
            numbers = [parts[value].fill if isinstance(value, Node) else value for value in node.args]
            if node.target is aten.div.Tensor and numbers[1] == 0:
                return None
            return Segment(None, 0, first.length, compute(*numbers))
        if any(source is None for source in sources) or any(part.start != first.start for part in parts.values()):
            return None
        known = cast("tuple[Node, ...]", sources)
        if len({tuple(source.meta["val"].shape) for source in known}) != 1:
            return None
        if sources not in made:
            operands = [parts[value].source if isinstance(value, Node) else value for value in node.args]
            made[sources] = self._call(node.target, *operands)
        return Segment(made[sources], first.start, first.length)


def _has_fixed_shape(value: torch.Tensor) -> bool:
    return all(type(size) is int for size in value.shape)


def _size(node: Node, dim: int) -> int:
    return int(node.meta["val"].shape[dim])


def _alike(source: Node, value: torch.Tensor) -> bool:
    held = source.meta["val"]
    return held.shape == value.shape and held.dtype == value.dtype


def _is_plain(node: Node, segments: Segments, merged: Segments) -> bool:
    """Whether ``node`` itself is how ``merged`` is best written."""
    if node.target is aten.cat.default:
        operands = cast("Sequence[Node]", node.args[0])
        return len(merged) == len(segments) == len([part for part in operands if part.meta["val"].numel()])
    return len(merged) == 1 and merged[0].source is node.args[0]


def _along(node: Node, dim: int) -> Segments:
    """The segments of ``node`` along ``dim``: itself where it has none."""
    known = node.meta.get(_KEY)
    if known is not None and known[0] == dim:
        return known[1]
    size = _size(node, dim)
    fill = _fill(node)
    return (Segment(node, 0, size),) if fill is None else (Segment(None, 0, size, fill),)


def _fill(node: Node) -> float | None:
    """The number that the node holds everywhere, where it was made so."""
    if node.op != "call_function":
        return None
    if node.target in _ZEROS:
        return 0
    position = _FULL.get(node.target)
    value = node.args[position] if position is not None and len(node.args) > position else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if float(value) == value else None


def _cut(segments: Segments, start: int, stop: int) -> Segments:
    kept: list[Segment] = []
    position = 0
    for part in segments:
        first, last = max(start, position), min(stop, position + part.length)
        if first < last:
            begin = part.start + first - position if part.source is not None else 0
            kept.append(dataclasses.replace(part, start=begin, length=last - first))
        position += part.length
    return tuple(kept)


def _merged(segments: Segments) -> Segments:
    """Neighbouring segments that are neighbours in their source as well are one."""
    result: list[Segment] = []
    for part in segments:
        last = result[-1] if result else None
        if last is not None and last.source is part.source:
            follows = part.source is not None and last.start + last.length == part.start
            if follows or (part.source is None and last.fill == part.fill):
                result[-1] = dataclasses.replace(last, length=last.length + part.length)
                continue
        result.append(part)
    return tuple(result)


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _bounds(node: Node, first: int, size: int) -> tuple[int, int] | None:
    """Start and stop of a slice with step 1 whose arguments begin at ``first``."""
    start, stop = _argument(node, first, "start", None), _argument(node, first + 1, "end", None)
    start, stop = 0 if start is None else start, size if stop is None else stop
    if not isinstance(start, int) or not isinstance(stop, int) or _argument(node, first + 2, "step", 1) != 1:
        return None
    start, stop, _ = slice(start, stop).indices(size)
    return (start, stop) if start < stop else None


def _slice(node: Node) -> tuple[int, Segments] | None:
    source = cast("Node", node.args[0])
    dim = _argument(node, 1, "dim", 0) % source.meta["val"].dim()
    bounds = _bounds(node, 2, _size(source, dim))
    return None if bounds is None else (dim, _cut(_along(source, dim), *bounds))


def _piece(node: Node) -> tuple[int, Segments] | None:
    split, index = cast("tuple[Node, int]", node.args)
    if split.target not in (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default):
        return None
    source = cast("Node", split.args[0])
    dim = _argument(split, 2, "dim", 0) % source.meta["val"].dim()
    sizes = [int(value.shape[dim]) for value in split.meta["val"]]
    start = sum(sizes[:index])
    return dim, _cut(_along(source, dim), start, start + sizes[index])


def _cat(node: Node) -> tuple[int, Segments] | None:
    operands = [value for value in cast("Sequence[Node]", node.args[0]) if value.meta["val"].numel()]
    if any(value.meta["val"].dtype != node.meta["val"].dtype for value in operands):
        return None
    dim = _argument(node, 1, "dim", 0) % node.meta["val"].dim()
    return dim, tuple(itertools.chain.from_iterable(_along(value, dim) for value in operands))


def _pad(node: Node) -> tuple[int, Segments] | None:
    source, amounts = cast("Node", node.args[0]), list(cast("Sequence[Any]", node.args[1]))
    fill = _argument(node, 2, "value", 0)
    padded = [position for position, amount in enumerate(amounts) if amount != 0]
    dims = {source.meta["val"].dim() - 1 - position // 2 for position in padded}
    if len(dims) != 1 or not all(isinstance(amount, int) and amount >= 0 for amount in amounts):
        return None
    if not isinstance(fill, int | float):
        return None
    (dim,) = dims
    first = 2 * (source.meta["val"].dim() - 1 - dim)
    before, after = amounts[first], amounts[first + 1]
    ends = [(Segment(None, 0, amount, fill),) if amount else () for amount in (before, after)]
    return dim, (*ends[0], *_along(source, dim), *ends[1])


def _overwritten(node: Node) -> tuple[int, Segments] | None:
    base, source = cast("tuple[Node, Node]", node.args[:2])
    dim = _argument(node, 2, "dim", 0) % base.meta["val"].dim()
    size = _size(base, dim)
    bounds = _bounds(node, 3, size)
    if bounds is None or base.meta["val"].dtype != source.meta["val"].dtype:
        return None
    start, stop = bounds
    under = _along(base, dim)
    return dim, (*_cut(under, 0, start), *_along(source, dim), *_cut(under, stop, size))


def _same(node: Node) -> tuple[int, Segments] | None:
    source = node.args[1] if node.target is aten.copy.default else node.args[0]
    if not isinstance(source, Node) or _KEY not in source.meta or not _alike(source, node.meta["val"]):
        return None
    return source.meta[_KEY]
