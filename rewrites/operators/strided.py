"""Tensors read through their memory: ``as_strided`` where it only rearranges what a dense tensor holds.

torch's own backward graphs use it to restore the layout of a gradient. What the operand's memory holds follows from the
strides that torch recorded; windows that overlap, gaps, and memory of other tensors have no representation here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Memory
from verifycompile.rewrites.registry import UNREPRESENTABLE, UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


@operator(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    b: Builder, self: View, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None
) -> View:
    memory = _memory(b)
    order = _dense_order(b.shape(self), memory.strides)
    start = 0 if storage_offset is None else _whole(storage_offset) - memory.offset
    sizes, strides = [_whole(s) for s in size], [_whole(s) for s in stride]
    # Dimensions of stride 0 repeat what the others read.
    extents = [1 if step == 0 else extent for extent, step in zip(sizes, strides, strict=True)]
    read = sorted(range(len(sizes)), key=lambda d: (extents[d] != 1, -strides[d] if extents[d] != 1 else 0))
    in_memory = b.reshape(b.permute(self, order), [_whole(product(b.shape(self)))])
    places = _places(b, in_memory, start, [(extents[d], strides[d]) for d in read if extents[d] != 1])
    rearranged = b.permute(b.reshape(places, [extents[d] for d in read]), _inverse(read))
    return b.expand(rearranged, sizes)


def _places(b: Builder, view: View, start: int, dims: Sequence[tuple[int, int]]) -> View:
    """Elements of a flat view from ``start`` on: extents and strides of dimensions, from the slowest to the fastest.

    Each is a dimension of blocks, as long as its stride, in which the faster ones lie. Raises UnsupportedError.
    """
    span = 1 + sum((extent - 1) * stride for extent, stride in dims)
    if start < 0 or start + span > _whole(b.shape(view)[0]):
        raise UnsupportedError(UNREPRESENTABLE, "`as_strided` beyond the elements of its operand")
    for extent, stride in dims:
        last, size = b.rank(view) - 1, _whole(b.shape(view)[-1])
        span -= (extent - 1) * stride
        first = start - start % stride if start % stride + span <= stride else start
        if span > stride or first + extent * stride > size:
            parts = [extent for extent, _ in dims], [stride for _, stride in dims]
            text = f"extents {parts[0]} at strides {parts[1]}: elements overlap, or a block of them is cut"
            raise UnsupportedError(UNREPRESENTABLE, text)
        blocks = b.narrow(view, last, first, extent * stride)
        view, start = b.reshape(blocks, [*b.shape(view)[:-1], extent, stride]), start - first
    return b.select(view, b.rank(view) - 1, start)


@operator(aten.as_strided_scatter.default)
def as_strided_scatter(
    b: Builder, self: View, src: View, size: Sequence[Size], stride: Sequence[Size], storage_offset: Size | None
) -> View:
    if b.call.dtypes.get("src") != b.call.dtypes.get("self"):
        raise UnsupportedError(UNSUPPORTED, "`as_strided_scatter` of a source of another type")
    memory, shape = _memory(b), [_whole(s) for s in b.shape(self)]
    order = _dense_order(shape, memory.strides)
    start = 0 if storage_offset is None else _whole(storage_offset) - memory.offset
    sizes = [_whole(s) for s in size]
    written = _dense_order(sizes, [_whole(s) for s in stride])
    if start != 0 or product(sizes) != product(shape):
        raise UnsupportedError(UNREPRESENTABLE, "`as_strided_scatter` into a part of its operand")
    in_memory = b.reshape(b.permute(src, written), [shape[d] for d in order])
    return b.permute(in_memory, _inverse(order))


def _memory(b: Builder) -> Memory:
    memory = b.call.memory
    if memory is None:
        raise UnsupportedError(UNREPRESENTABLE, "a tensor whose place in memory is not recorded")
    return memory


def _dense_order(shape: Sequence[Size], strides: Sequence[int]) -> list[int]:
    """All dimensions from the slowest to the fastest, as elements lie in memory.

    Raises UnsupportedError where there are gaps between the elements, or several at one place.
    """
    sizes = [_whole(s) for s in shape]
    order = sorted(range(len(sizes)), key=lambda d: (sizes[d] != 1, -strides[d] if sizes[d] != 1 else 0))
    expected = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != expected:
            raise UnsupportedError(UNREPRESENTABLE, f"shape {sizes} at strides {list(strides)}: gaps or overlaps")
        expected *= sizes[d]
    return order


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(position) for position in range(len(order))]


def _whole(size: Size) -> int:
    if not isinstance(size, int):
        raise UnsupportedError(UNREPRESENTABLE, f"strides over a symbolic size {size}")
    return size
