"""Values written at positions of one dimension, or of two."""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.algebra import has_infinity
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators import known_places
from verifycompile.rewrites.operators.advanced_indexing import index_labels, matches, put_accumulated
from verifycompile.rewrites.operators.bounds_from_start import from_the_start
from verifycompile.rewrites.operators.distinct import is_distinct
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.operators.scatter import rows_overwritten

__all__ = ["position", "put_accumulated", "put_at", "put_distinct", "put_rows"]


def is_permutation(b: Builder, index: View, size: Size) -> bool:
    """Whether ``index`` holds every place of a dimension of ``size`` once."""
    return b.rank(index) == 1 and b.shape(index) == (size,) and is_distinct(b, index, 0) and size != 1


def put_distinct(b: Builder, view: View, dim: int, index: View | None, values: View) -> View | None:
    """Values at places of one dimension, no two of which are the same."""
    if index is None or b.rank(index) != 1:
        return None
    shape, (count,) = list(b.shape(view)), b.shape(index)
    put = b.expand(values, [*shape[:dim], count, *shape[dim + 1 :]])
    known = known_places.put(b, view, dim, index, put)
    if known is not None or not is_distinct(b, index, 0):
        return known
    places = matches(b, index, shape[dim])
    if count == 1:
        mask = b.squeeze(places, 0)
        for _ in shape[dim + 1 :]:
            mask = b.unsqueeze(mask, -1)
        return choose(b, mask, put, view)
    before, after = (" ".join(f"{name}{d}" for d in range(n)) for name, n in (("l", dim), ("r", len(shape) - dim - 1)))
    written = b.contraction(f"i v, {before} i {after} -> {before} v {after}", places, put)
    if is_permutation(b, index, shape[dim]):
        return written  # all places are written: what was there before does not matter
    if has_infinity(put) or has_infinity(view):
        return None
    replaced = b.contraction(f"i v, {before} v {after} -> {before} v {after}", places, view)
    return b.add(b.sub(view, replaced), written)


def put_rows(b: Builder, view: View, indices: tuple[View, View], values: View, accumulate: bool) -> View | None:
    for rows, dim in ((indices[0], 0), (indices[1], 1)):
        other = indices[1 - dim]
        if not _counts(b, rows, b.shape(view)[dim]) or b.rank(other) != 1 or b.rank(values) > 1:
            continue
        # Each row occurs once, so no two values meet in one element and their order does not matter.
        mask = matches(b, other, b.shape(view)[1 - dim])
        spread = b.unsqueeze(values, 1) if b.rank(values) else values
        if dim == 1:
            mask = b.transpose(mask, 0, 1)
            spread = b.transpose(spread, 0, 1) if b.rank(values) else spread
        if accumulate:
            return b.add(view, b.mul(mask, spread))
        finite = not (has_infinity(spread) or has_infinity(view))
        return b.add(view, b.mul(mask, b.sub(spread, view))) if finite else choose(b, mask, spread, view)
    return None


def _counts(b: Builder, index: View, size: Size) -> bool:
    """Whether ``index`` is ``arange(size)``."""
    return b.rank(index) == 1 and index == b.iota(size)


def position(b: Builder, index: View, size: Size) -> View:
    """The position that an index means, which may count from the end of a dimension of ``size``."""
    if from_the_start(b.pool, index, size):
        return index
    return b.combination((1, index), (size, b.less(index, 0)))


def put_at(b: Builder, view: View, indices: Sequence[View | None], values: View) -> View:
    """Values at the places that ``view[indices]`` reads: those of one dimension, which the indexed ones are made."""
    indexed, rest, _, front = index_labels(b, view, indices)
    before, after = [d for d in rest if d < front], [d for d in rest if d >= front]
    order, shape = [*before, *indexed, *after], b.shape(view)
    moved = b.permute(view, order)
    size = product(shape[d] for d in indexed)
    lead, tail = [shape[d] for d in before], [shape[d] for d in after]
    positions = [position(b, index, shape[d]) for d, index in enumerate(indices) if index is not None]
    strides = [product(shape[d] for d in indexed[k + 1 :]) for k in range(len(indexed))]
    places = b.combination(*zip(strides, positions, strict=True))
    count = product(b.shape(places))
    source = b.reshape(b.expand(values, [*lead, *b.shape(places), *tail]), [*lead, count, *tail])
    result = rows_overwritten(b, b.reshape(moved, [*lead, size, *tail]), b.reshape(places, [count]), source, len(lead))
    return b.permute(b.reshape(result, b.shape(moved)), [order.index(d) for d in range(len(order))])
