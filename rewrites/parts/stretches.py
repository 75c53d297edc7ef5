"""Parts of values along a dimension: windows of one value, and concatenations, neighbouring parts concatenated.

A view that is a window along several dimensions is read as windows of one base (``Stretch``), in one order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, pieces_of
from verifycompile.ir.relabel import UnalignedError, insert_dim, reshape, substitute
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Axis, Digit, TermPool, View
from verifycompile.ir.window import Windowed, window_at
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.parts.similar import join_similar
from verifycompile.rewrites.parts.sliding import read_only, read_together, stretched
from verifycompile.rewrites.parts.stretched_counters import joined_counters


def whole(size: Size) -> int:
    """Raises ``UnalignedError`` for a symbolic size."""
    if not isinstance(size, int):
        raise UnalignedError(f"a part of symbolic size {size}")
    return size


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A view as windows of ``base``: for each dimension that is one, its first position and length."""

    base: View
    spans: dict[int, tuple[int, int]]


def stretch_of(view: View, prefer: int = -1) -> Stretch:
    """``prefer``: the dimension along which a window of one position is taken to lie, if that has size one."""
    spans: dict[int, tuple[int, int]] = {}
    dims = sorted(range(view.rank), key=lambda dim: dim != prefer)
    while found := next(((dim, part) for dim in dims if (part := window_at(view, dim)) is not None), None):
        dim, part = found
        first, length = spans.get(dim, (0, whole(view.shape[dim])))
        spans[dim] = (part.start + first, length)
        view = part.source
    return Stretch(view, spans)


def windowed(pool: TermPool, base: View, spans: Mapping[int, tuple[int, int]]) -> View:
    """Windows in the order of the axes of ``base``, so that windows of several dimensions are one term."""

    def place(dim: int) -> int:
        return min((k for k, axis in enumerate(base.axes) if any(digit[0] == dim for digit in axis)), default=-1)

    result = base
    for dim in sorted(spans, key=lambda dim: (place(dim), dim)):
        result = window(pool, result, dim, *spans[dim])
    return result


def window_along(pool: TermPool, view: View, dim: int) -> Windowed | None:
    """``window_at`` for a view that may be a window along other dimensions too."""
    found = stretch_of(view, dim)
    if dim not in found.spans:
        return None
    rest = {other: span for other, span in found.spans.items() if other != dim}
    return Windowed(found.spans[dim][0], windowed(pool, found.base, rest))


def part_of(pool: TermPool, view: View, dim: int, start: int, length: Size) -> View:
    """A window along ``dim``; of a matrix of sliding windows, a matrix."""
    matrix = stretched(pool, view, dim, start, whole(length))
    if matrix is not None:
        return matrix
    found = stretch_of(view)
    before = found.spans.get(dim, (0, 0))[0]
    spans = {**found.spans, dim: (before + start, whole(length))}
    for other, span in spans.items():
        unmasked = read_only(pool, found.base, other, *span)
        if unmasked is not None:
            pool.lemma_trace.append(("range-within-reach", repr(found.base.term)))
            for place, part in spans.items():
                unmasked = part_of(pool, unmasked, place, *part)
            return unmasked
    return windowed(pool, found.base, spans)


def narrowed(pool: TermPool, view: View, dim: int, start: int, length: int) -> View:
    """``length`` positions along ``dim`` from ``start`` on: of the pieces, where there are any, else a window."""
    if view.shape[dim] == length:
        return view
    if concatenated_dim(view) != dim:
        return part_of(pool, view, dim, start, length)
    taken: list[View] = []
    offset = 0
    for piece in pieces_of(view, dim):
        size = whole(piece.shape[dim])
        first, last = max(start, offset), min(start + length, offset + size)
        if first < last:
            taken.append(narrowed(pool, piece, dim, first - offset, last - first))
        offset += size
    return joined(pool, taken, dim)


def joined(pool: TermPool, views: Sequence[View], dim: int) -> View:
    """The concatenation along ``dim``, neighbouring parts of one value and equal numbers concatenated."""
    similar = join_similar(pool, views, dim) if len(views) > 1 else None
    if similar is not None:
        return similar
    merged: list[View] = []
    for view in views:
        for piece in pieces_of(view, dim) if concatenated_dim(view) == dim else [view]:
            if piece.shape[dim] == 0:
                continue
            both = _neighbours(pool, merged[-1], piece, dim) if merged else None
            if both is None:
                merged.append(piece)
            else:
                merged[-1] = both
    if len(merged) == 1:
        return merged[0]
    of_one = all(view.shape[dim] == 1 and view.term is not pool.unit for view in merged)
    return stacked(pool, merged, dim) if of_one else _concatenation(pool, merged, dim)


def _neighbours(pool: TermPool, left: View, right: View, dim: int) -> View | None:
    """Two neighbouring pieces as one: the same value repeated, or parts of one value that follow each other."""
    size = whole(left.shape[dim]) + whole(right.shape[dim])
    shape = (*left.shape[:dim], size, *left.shape[dim + 1 :])
    if dataclasses.replace(left, shape=shape) == dataclasses.replace(right, shape=shape):
        return dataclasses.replace(left, shape=shape)
    counted = joined_counters(pool, left, right, dim, (left.shape[dim], right.shape[dim]))
    if counted is not None:
        return counted
    first, second = window_along(pool, left, dim), window_along(pool, right, dim)
    if first is None or second is None or first.start + whole(left.shape[dim]) != second.start:
        return None
    source = first.source if first.source == second.source else _read_together(pool, (left, right), dim)
    if source is None:
        return None
    pool.lemma_trace.append(("neighbouring-windows", ""))
    return part_of(pool, source, dim, first.start, size)


def _read_together(pool: TermPool, views: tuple[View, View], dim: int) -> View | None:
    """The source of two neighbouring windows whose sources differ only where they are not read."""
    left, right = (stretch_of(view, dim) for view in views)
    rest = [{d: span for d, span in part.spans.items() if d != dim} for part in (left, right)]
    if rest[0] != rest[1]:
        return None
    source = read_together(pool, (left.base, *left.spans[dim]), (right.base, *right.spans[dim]), dim)
    if source is None:
        return None
    pool.lemma_trace.append(("range-within-reach", ""))
    for other, span in rest[0].items():
        source = part_of(pool, source, other, *span)
    return source


def told_apart(pool: TermPool, view: View) -> View:
    """A concatenation of which two digits are read, as equal pieces that the first digit tells apart."""
    if view.term.operation is not CONCATENATE:
        return view
    (fresh,) = view.term.fresh
    digits = view.axes[fresh]
    if len(digits) < 2 or any(d < 0 or size != view.shape[d] for d, _, size in digits):
        return view
    (outer, _, count), *inner = digits
    length = whole(product(size for _, _, size in inner))
    flat = along_pieces(view, product((count, length)))
    replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(view.shape)}
    replacement[view.rank] = inner
    shape = (*view.shape[:outer], 1, *view.shape[outer + 1 :])
    replacement[outer] = []
    pieces = [narrowed(pool, flat, view.rank, k * length, length) for k in range(whole(count))]
    return stacked(pool, [substitute(piece, replacement, shape) for piece in pieces], outer)


def along_pieces(view: View, size: Size) -> View:
    """A concatenation with a dimension of its own, the last one, of its ``size`` positions, whatever the view reads."""
    (fresh,) = view.term.fresh
    axes: list[Axis] = list(view.axes)
    axes[fresh] = ((view.rank, 1, size),)
    return View(view.coefficient, view.term, (*view.shape, size), tuple(axes))


def stacked(pool: TermPool, views: Sequence[View], dim: int) -> View:
    """Pieces that the index of ``dim``, of which each has one position, tells apart."""
    similar = join_similar(pool, views, dim)
    if similar is not None:
        return similar
    labels: tuple[Label, ...] = tuple(range(views[0].rank))
    among = tuple("piece" if d == dim else d for d in labels)
    return apply(pool, STACK, (), views, Signature(tuple(labels for _ in views), among, fresh={"piece": len(views)}))


def with_pieces_told_apart(pool: TermPool, view: View) -> View:
    """A concatenation of equal pieces that stay apart: a digit tells them apart, as in what ``torch.cat`` makes."""
    dim = concatenated_dim(view) if view.term.operation is CONCATENATE else None
    if dim is None:
        return view
    pieces = pieces_of(view, dim)
    in_parts = any(piece.term is pool.unit or piece.term.operation is CONCATENATE for piece in pieces)
    length = pieces[0].shape[dim]
    in_parts = in_parts or (len({piece.term for piece in pieces}) == 1 and length != 1)
    if in_parts or any(piece.shape[dim] != length for piece in pieces):
        return view
    return reshape(stacked(pool, [insert_dim(piece, dim) for piece in pieces], dim), view.shape)


def _concatenation(pool: TermPool, views: Sequence[View], dim: int) -> View:
    inputs = tuple(tuple(("piece", k) if d == dim else d for d in range(view.rank)) for k, view in enumerate(views))
    output: tuple[Label, ...] = tuple("fresh" if d == dim else d for d in range(views[0].rank))
    total = sum(whole(view.shape[dim]) for view in views)
    cores = tuple((("piece", k),) for k in range(len(views)))
    return apply(pool, CONCATENATE, (), views, Signature(inputs, output, frozenset(), cores, {"fresh": total}))
