"""Cumulative sums as products with a triangular mask: the sum up to ``i`` is that of ``[j <= i] x[j]`` over ``j``.

So a part of the positions is a part of the mask, and the sums of parts are combined as all sums under masks are
(``finders/prefixes.py``).
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import torch

from verifycompile.ir import indicator
from verifycompile.ir.algebra import combine, contract, iota
from verifycompile.ir.build import Label
from verifycompile.ir.pieces import CONCATENATE, concatenated_dim, pieces_of, whole_dim_of_fresh
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.scalar import ONE, as_scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD, SLICE
from verifycompile.rewrites.operators.elementwise import cast
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.cumsum.default)
def cumsum(b: Builder, self: View, dim: int, dtype: torch.dtype | None) -> View:
    value = cast(b, self, b.dtype_of("self"), b.call.dtype if dtype is None else dtype)
    return cumulative_sum(b, value, dim) if b.rank(value) else value


def cumulative_sum(b: Builder, view: View, dim: int) -> View:
    """At each position of ``dim`` the sum of all elements up to it; of a slice with zeros around it, a sum of all."""
    position = b.dim(view, dim)
    if not view.uses(position):
        labels: tuple[Label, ...] = tuple(range(view.rank))
        count = combine(b.pool, [iota(b.pool, view.shape[position]), b.pool.constant(ONE, (view.shape[position],))])
        return contract(b.pool, [view, count], [labels, (position,)], labels, frozenset())
    found = _found_in(view, position)
    place = iota(b.pool, found.source.shape[position])
    shifted = combine(b.pool, [place, b.pool.constant(Fraction(found.moved), place.shape)])
    counter = iota(b.pool, view.shape[position])
    masks = [indicator.less_equal(b.pool, insert_dim(shifted, 1), insert_dim(counter, 0))]
    inputs: list[tuple[Label, ...]] = [(position, "up to")]
    if found.first != 0:
        masks.append(indicator.less_equal(b.pool, b.pool.constant(as_scalar(found.first), place.shape), place))
        inputs.append((position,))
    if found.last + found.moved != view.shape[position] - 1:  # else no position is further on
        masks.append(indicator.less_equal(b.pool, place, b.pool.constant(as_scalar(found.last), place.shape)))
        inputs.append((position,))
    labels = tuple(range(view.rank))
    output = tuple("up to" if label == position else label for label in labels)
    return contract(b.pool, [found.source, *masks], [labels, *inputs], output, frozenset({position}))


@dataclasses.dataclass(frozen=True)
class _Part:
    """Positions ``first`` to ``last`` of ``source``, which lie ``moved`` further on; zeros around them."""

    source: View
    first: Size
    last: Size
    moved: int


def _found_in(view: View, position: int) -> _Part:
    """The tensor of which the view is a slice, a padded one, or a padded slice, and which part of it."""
    size = view.shape[position]
    found = _Part(view, 0, size - 1, 0)
    while (inside := _inside(found.source, position)) is not None and isinstance(found.last, int):
        inner, moved = inside
        length = inner.shape[position]
        if not isinstance(length, int):
            break
        first, last = max(found.first - moved, 0), min(found.last - moved, length - 1)
        found = _Part(inner, first, last, found.moved + moved)
    return found


def _inside(view: View, position: int) -> tuple[View, int] | None:
    """What a view is a part of, or has zeros around, and how much further on it lies; None for any other view."""
    if view.term.operation in (PAD, SLICE) and whole_dim_of_fresh(view) == position:
        start, step = view.term.attributes
        (inner,) = pieces_of(view, position)
        if step != 1 or not isinstance(start, int):
            return None
        return inner, start if view.term.operation is PAD else -start
    if view.term.operation is not CONCATENATE or concatenated_dim(view) != position:
        return None
    pieces = pieces_of(view, position)
    given = [number for number, piece in enumerate(pieces) if not piece.is_zero]
    before = sum(piece.shape[position] for piece in pieces[: given[0]]) if len(given) == 1 else None
    return (pieces[given[0]], before) if isinstance(before, int) else None
