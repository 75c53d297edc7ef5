"""Layout operators: view, transpose, split, concatenation, slicing. They move digits; few make a term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from verifycompile.ir import relabel
from verifycompile.ir.pieces import concatenated_dim, pieces_of
from verifycompile.ir.size import Size, exact_quotient, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Number
from verifycompile.rewrites.operations import SLICE
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError, operator
from verifycompile.rewrites.values import Piece, Pieces

aten = torch.ops.aten


@operator(
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    aten.contiguous.default,
    aten.alias_copy.default,
    aten.detach_copy.default,
    aten.clone.default,
)
def same(b: Builder, self: View) -> View:
    return self


@operator(aten.view.default, aten.view_copy.default, aten._unsafe_view.default, aten._reshape_copy.default)
def view(b: Builder, self: View, size: Sequence[Size]) -> View:
    return b.reshape(self, _resolve(b, self, size))


@operator(aten.reshape.default)
def reshape(b: Builder, self: View, shape: Sequence[Size]) -> View:
    return b.reshape(self, _resolve(b, self, shape))


def _resolve(b: Builder, view: View, size: Sequence[Size]) -> list[Size]:
    """Replace a size of -1 by what the number of elements leaves for it."""
    sizes = list(size)
    if -1 not in sizes:
        return sizes
    known = product(s for s in sizes if s != -1)
    rest = exact_quotient(product(b.shape(view)), known)
    if rest is None:
        raise UnsupportedError(UNREPRESENTABLE, f"a view of shape {sizes} whose free size is no whole number")
    return [rest if s == -1 else s for s in sizes]


@operator(aten.t.default, aten.t_copy.default)
def t(b: Builder, self: View) -> View:
    return b.transpose(self, 0, 1) if b.rank(self) == 2 else self


@operator(aten.transpose.int, aten.transpose_copy.int)
def transpose(b: Builder, self: View, dim0: int, dim1: int) -> View:
    return b.transpose(self, dim0, dim1)


@operator(aten.permute.default, aten.permute_copy.default)
def permute(b: Builder, self: View, dims: Sequence[int]) -> View:
    return b.permute(self, dims)


@operator(aten.expand.default, aten.expand_copy.default)
def expand(b: Builder, self: View, size: Sequence[Size]) -> View:
    return b.expand(self, size)


@operator(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(b: Builder, self: View, dim: int) -> View:
    return b.unsqueeze(self, dim)


@operator(aten.squeeze.dim, aten.squeeze_copy.dim, aten.squeeze.dims, aten.squeeze_copy.dims)
def squeeze_dims(b: Builder, self: View, dim: int | Sequence[int]) -> View:
    return b.squeeze(self, dim) if isinstance(dim, int) or dim else self


@operator(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(b: Builder, self: View) -> View:
    return b.squeeze(self, None)


@operator(aten.select.int, aten.select_copy.int)
def select(b: Builder, self: View, dim: int, index: Number) -> View:
    if isinstance(index, int) and index < 0:
        size = self.shape[b.dim(self, dim)]
        index = size + index
    return b.select(self, dim, index)


@operator(aten.slice.Tensor)
def slice_tensor(b: Builder, self: View, dim: int, start: Number | None, end: Number | None, step: Number) -> View:
    size = self.shape[b.dim(self, dim)]
    first = bound(size, 0 if start is None else start)
    last = bound(size, size if end is None else end)
    if step == 1:
        length = _difference(last, first)
        return empty_along(b, self, dim) if length == 0 else b.narrow(self, dim, first, length)
    if not all(isinstance(n, int) for n in (size, first, last, step)):
        from verifycompile.rewrites.parts.rank_places import every_step_from  # here, because few programs slice so

        return every_step_from(b, self, b.dim(self, dim), first, last, step)
    assert isinstance(first, int)
    assert isinstance(last, int)
    assert isinstance(step, int)
    length = max(0, -(-(last - first) // step))
    if length == 0:
        return empty_along(b, self, dim)
    if isinstance(size, int) and size % step == 0 and first < step and length == size // step:
        position = b.dim(self, dim)
        rows = relabel.split_dim(self, position, length, step)
        return relabel.select(rows, position + 1, first)
    return b.along(SLICE, (first, step), self, dim, length)


def empty_along(b: Builder, view: View, dim: int) -> View:
    """A tensor without elements: nothing along ``dim``."""
    position = b.dim(view, dim) - b.lead
    return b.full(0, [0 if d == position else size for d, size in enumerate(b.shape(view))])


def bound(size: Size, index: Number) -> Number:
    """A slice bound clamped to the dimension, as Python does."""
    if not isinstance(index, int):
        return index
    if isinstance(size, int):
        return max(0, size + index) if index < 0 else min(size, index)
    if index < 0:
        return size + index
    # A bound beyond every real size (torch writes 2**63 - 1) means the end; a small one may or may not exceed it.
    if index >= 2**31:
        return size
    if index == 0:
        return 0
    raise UnsupportedError(UNREPRESENTABLE, f"a slice to {index} of a dimension of symbolic size {size}")


def _difference(last: Number, first: Number) -> Size:
    from sympy import expand

    if isinstance(last, int) and isinstance(first, int):
        return max(0, last - first)
    length = expand(last - first)
    return int(length) if length.is_Integer else length


@operator(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(b: Builder, self: View, split_size: Size, dim: int) -> Pieces:
    size = self.shape[b.dim(self, dim)]
    count = exact_quotient(size, split_size)
    if isinstance(count, int):
        return Pieces(self, dim, (split_size,) * count)
    if not isinstance(size, int) or not isinstance(split_size, int):
        raise UnsupportedError(UNREPRESENTABLE, f"a split of {size} into pieces of {split_size}")
    return Pieces(self, dim, (*(split_size,) * (size // split_size), size % split_size))


@operator(aten.split_with_sizes.default, aten.split_with_sizes_copy.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(b: Builder, self: View, split_sizes: Sequence[Size], dim: int) -> Pieces:
    return Pieces(self, dim, tuple(split_sizes))


@operator(aten.unbind.int, aten.unbind_copy.int)
def unbind(b: Builder, self: View, dim: int) -> tuple[View, ...]:
    size = self.shape[b.dim(self, dim)]
    if not isinstance(size, int):
        raise UnsupportedError(UNREPRESENTABLE, f"unbind of symbolic size {size}")
    return tuple(b.select(self, dim, i) for i in range(size))


@operator(aten.cat.default)
def cat(b: Builder, tensors: Sequence[View | Piece] | Pieces, dim: int) -> View:
    """``tensors`` may be a whole split: all of its pieces in order."""
    if isinstance(tensors, Pieces):
        if len(set(tensors.lengths)) == 1:
            return _swap_split(b, tensors, dim)
        tensors = [Piece(tensors, i) for i in range(len(tensors))]
    views = [t.view(b) if isinstance(t, Piece) else t for t in tensors]
    # torch drops empty one-dimensional tensors from a concatenation; other empty ones add nothing to it.
    rank = max(b.rank(v) for v in views)
    wide = [v for v in views if not (rank > 1 and b.rank(v) == 1 and b.shape(v) == (0,))]
    kept = [v for v in wide if v.shape[b.dim(v, dim)] != 0] or wide[:1]
    return kept[0] if len(kept) == 1 else b.concatenate(kept, dim)


def _swap_split(b: Builder, pieces: Pieces, dim: int) -> View:
    """Concatenate along ``dim`` what was split along another dimension: the number of the piece moves there."""
    source, target = b.dim(pieces.view, pieces.dim), b.dim(pieces.view, dim)
    if source == target:
        return pieces.view
    count, length = len(pieces), pieces.lengths[0]
    split_view = relabel.split_dim(pieces.view, source, count, length)
    order = list(range(split_view.rank))
    order.remove(source)
    position = target if target < source else target + 1
    order.insert(order.index(position), source)
    moved = relabel.permute(split_view, order)
    shape = list(b.shape(pieces.view))
    shape[pieces.dim % len(shape)] = length
    shape[dim % len(shape)] = product((count, shape[dim % len(shape)]))
    swapped = b.reshape(moved, shape)
    if b.pool.piecewise is not None and concatenated_dim(swapped) == target:
        return b.pool.piecewise.joined(b.pool, pieces_of(swapped, target), target)
    return swapped


@operator(aten.stack.default)
def stack(b: Builder, tensors: Sequence[View], dim: int) -> View:
    position = dim % (b.rank(tensors[0]) + 1)
    return b.concatenate([b.unsqueeze(v, position) for v in tensors], position)


def piece_of(value: Any, index: int) -> Any:
    """``value[index]`` for the tuple-like results of operators."""
    return Piece(value, range(len(value))[index]) if isinstance(value, Pieces) else value[index]
