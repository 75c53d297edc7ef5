"""Advanced indexing, ``x[i, :, j]``, and its gradient: contractions with indicators, one for each index."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.arithmetic import remainder
from verifycompile.rewrites.operators.bounds_from_start import from_the_start, require_position
from verifycompile.rewrites.operators.counted import number_of_places
from verifycompile.rewrites.operators.elementwise import INTEGER_DTYPES
from verifycompile.rewrites.operators.indexing import rows_at
from verifycompile.rewrites.operators.known_places import read_at, spread
from verifycompile.rewrites.operators.ordering import at_its_extreme
from verifycompile.rewrites.registry import UNSUPPORTED, UnsupportedError, operator

aten = torch.ops.aten


def matches(b: Builder, index: View, size: Size) -> View:
    """Whether an index is a position, counted from the start or from the end: outside of both torch raises an error."""
    if number_of_places(index) != size and not from_the_start(b.pool, index, size):
        require_position(b, index, size)
        index = remainder(b, index, size)
    return b.equal(b.unsqueeze(index, b.rank(index)), b.iota(size))


def index_labels(b: Builder, view: View, indices: Sequence[View | None]) -> tuple[list[int], list[int], int, int]:
    """Dimensions that are indexed, the other ones, the rank of the index, and where its dimensions stand."""
    if b.call.dtypes.get("indices") not in INTEGER_DTYPES:
        raise UnsupportedError(UNSUPPORTED, "a mask as an index: the size of the result depends on data")
    indexed = [d for d, index in enumerate(indices) if index is not None]
    rest = [d for d in range(b.rank(view)) if d not in indexed]
    rank = max(b.rank(indices[d]) for d in indexed)  # pyright: ignore[reportArgumentType]  # those indexed are given
    together = indexed == list(range(indexed[0], indexed[-1] + 1))
    return indexed, rest, rank, indexed[0] if together else 0


@operator(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(b: Builder, self: View, indices: Sequence[View | None]) -> View:
    """``self[i, :, j]``: the dimensions of the indices stand where the indexed ones stood together, or in front."""
    indexed, rest, _, front = index_labels(b, self, indices)
    first = indices[0]
    only = indices[indexed[0]] if len(indexed) == 1 else None
    if only is not None and (b.rank(only) == 1 or front == 0):
        known = read_at(b, self, front, only)
        if known is not None:
            return known
    if indexed == [0] and first is not None and from_the_start(b.pool, first, b.shape(self)[0]):
        return rows_at(b, self, first)
    second = indices[1] if len(indexed) == b.rank(self) == 2 else None
    if second is not None and first == b.iota(b.shape(self)[0]):
        found = at_its_extreme(b, self, 1, b.unsqueeze(second, 1))
        if found is not None:
            return b.squeeze(found, [1])
    lookups = [matches(b, indices[d], b.shape(self)[d]) for d in indexed]  # pyright: ignore[reportArgumentType]  # those indexed are given
    names = {d: f"v{d}" for d in indexed} | {d: f"r{d}" for d in rest}
    before, after = [names[d] for d in rest if d < front], [names[d] for d in rest if d >= front]
    text = ", ".join(f"*i v{d}" for d in indexed)
    table = " ".join(names[d] for d in range(b.rank(self)))
    return b.contraction(f"{text}, {table} -> {' '.join([*before, '*i', *after])}", *lookups, self)


def put_accumulated(b: Builder, view: View, indices: Sequence[View | None], values: View) -> View:
    """``view`` plus ``values`` at the places that ``view[indices]`` reads; values broadcast."""
    indexed, rest, rank, front = index_labels(b, view, indices)
    only = indices[indexed[0]] if len(indexed) == 1 and rank == 1 else None
    if only is not None:
        size = b.shape(view)[front]
        wide = b.expand(values, [*b.shape(view)[:front], *b.shape(only), *b.shape(view)[front + 1 :]])
        known = spread(b, front, only, wide, size)
        if known is not None:
            return b.add(view, known)
    lookups = [matches(b, indices[d], b.shape(view)[d]) for d in indexed]  # pyright: ignore[reportArgumentType]  # those indexed are given
    names = {d: f"v{d}" for d in indexed} | {d: f"r{d}" for d in rest}
    before, after = [names[d] for d in rest if d < front], [names[d] for d in rest if d >= front]
    for _ in range(rank + len(rest) - b.rank(values)):
        values = b.unsqueeze(values, 0)
    text = ", ".join(f"*i v{d}" for d in indexed)
    table = " ".join(names[d] for d in range(b.rank(view)))
    added = b.contraction(f"{text}, {' '.join([*before, '*i', *after])} -> {table}", *lookups, values)
    return b.add(view, added)
