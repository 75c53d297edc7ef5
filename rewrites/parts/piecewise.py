"""Values that are assembled from parts along a dimension: computed part by part, and assembled behind it.

Where ranks join their shard with a neighbour's edge, what they compute is computed on stretches that end within shards
and on paddings. A pool with a ``Piecewise`` brings such values into one form: a concatenation moves out of every
operation that treats the positions of its dimension alike, a sum over one is the sum of its pieces' sums, and windows
of different places are windows of the longest stretch on which all operands are known. So the parts that ranks compute
lie next to each other and are assembled again, whatever their ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence

from verifycompile.ir import algebra
from verifycompile.ir.algebra import COMBINE, CONTRACT
from verifycompile.ir.build import Label, Signature, apply, refine
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, pieces_of
from verifycompile.ir.relabel import UnalignedError, compose, insert_dim, narrow, remove_dim, substitute
from verifycompile.ir.size import Size, quotient
from verifycompile.ir.term import CONSTANT, Digit, Operation, Term, TermPool, View
from verifycompile.ir.window import WINDOW, range_view, resized, window_at
from verifycompile.rewrites.finders.ranges import holds_range
from verifycompile.rewrites.operations import SLIDING_WINDOW
from verifycompile.rewrites.parts.chosen import at_position
from verifycompile.rewrites.parts.sliding import stretched, without_implied_range
from verifycompile.rewrites.parts.sliding_matrix import LINE, WINDOWS, axis_along, matrix_of
from verifycompile.rewrites.parts.stretched_counters import is_of_counters, stretched_counters
from verifycompile.rewrites.parts.stretches import (
    joined,
    narrowed,
    part_of,
    stacked,
    stretch_of,
    told_apart,
    whole,
    window_along,
    with_pieces_told_apart,
)

_PARTS = (WINDOW, CONCATENATE, STACK, SLIDING_WINDOW)
Pointwise = Callable[..., View]


@dataclasses.dataclass(frozen=True)
class _Space:
    """Views over common digits. ``back``: each dimension that is left, as digits of those that there were before."""

    views: list[View]
    shape: tuple[Size, ...]
    free: int
    back: dict[int, Sequence[Digit]]
    old_shape: tuple[Size, ...]

    def restored(self, pool: TermPool, result: View) -> View:
        return substitute(with_pieces_told_apart(pool, result), self.back, self.old_shape)


class Piecewise:
    """What ``TermPool.piecewise`` does for operations of the normal form. None: nothing is assembled from parts."""

    def product(self, pool: TermPool, factors: Sequence[View], shape: tuple[Size, ...], free: int) -> View | None:
        """The sum over dimensions from ``free`` on of the product of ``factors``."""
        if not _has_parts(factors):
            return None
        space = _refined(pool, factors, shape, free)
        if space is None:
            return None
        flat = _opened_windows(pool, space.views, CONTRACT) if len(factors) > 1 or free < len(shape) else space.views
        if len(flat) > len(factors):
            return space.restored(pool, _contracted(pool, flat, space.shape, space.free))
        for dim in range(len(space.shape)):
            result = self._product_along(pool, space, dim)
            if result is not None:
                return space.restored(pool, result)
        rest = without_implied_range(space.views, range(space.free, len(space.shape)))
        if rest is not None:
            pool.lemma_trace.append(("range-within-reach", ""))
            return space.restored(pool, _contracted(pool, rest, space.shape, space.free))
        for dim in range(space.free):
            result = _with_all_windows(pool, space, dim)
            if result is not None:
                return space.restored(pool, result)
        return None

    def _product_along(self, pool: TermPool, space: _Space, dim: int) -> View | None:
        ends = _ends(space.views, space.shape, dim)
        if len(ends) < 3:
            return self._product_on_windows(pool, space, dim, 0, ends[1]) if ends else None
        bound = dim >= space.free
        pool.lemma_trace.append(("over-all-pieces" if bound else "pieces-outside", ""))
        done: list[View] = []
        apart = _is_told_apart(space.views, dim)
        for start, stop in itertools.pairwise(ends):
            shape = (*space.shape[:dim], stop - start, *space.shape[dim + 1 :])
            if bound and apart:
                done.append(_contracted(pool, _at(pool, space.views, dim, start), shape, space.free))
                continue
            views = [
                v if _reads_matrix(v, dim) else _part(pool, v, dim, start, stop - start, told_apart=apart)
                for v in space.views
            ]
            part = dataclasses.replace(space, views=views, shape=shape)
            result = self._product_on_windows(pool, part, dim, start, stop - start)
            if result is None:
                views = [narrowed(pool, view, dim, start, stop - start) for view in space.views]
                result = _contracted(pool, views, shape, space.free)
            done.append(result)
        return algebra.combine(pool, done) if bound else _assembled(pool, done, dim, told_apart=apart)

    def _product_on_windows(self, pool: TermPool, space: _Space, dim: int, start: int, length: int) -> View | None:
        """The product where all views but matrices are windows along ``dim``; matrices are read from ``start`` on."""
        joint = _joint(pool, space.views, dim, length, start)
        if joint is None:
            return None
        first, total, views = joint
        shape = (*space.shape[:dim], total, *space.shape[dim + 1 :])
        pool.lemma_trace.append(("windows-of-different-places", ""))
        if dim < space.free:
            return part_of(pool, _contracted(pool, views, shape, space.free), dim, first, length)
        pool.lemma_trace.append(("sum-over-window", ""))
        return _contracted(pool, [*views, range_view(pool, dim, shape, (first, first + length))], shape, space.free)

    def combination(self, pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> View | None:
        """The sum of ``operands``, which broadcast to ``shape``."""
        if not _has_parts(operands):
            return None
        if any(map(_is_position, operands)) and any(_holds_range(pool, view.term) for view in operands):
            summed = [_position_as_sum(pool, view, shape) for view in operands]
            if summed != list(operands):
                return algebra.combine(pool, summed)
        space = _refined(pool, operands, shape, len(shape))
        if space is None:
            return None
        flat = _opened_windows(pool, space.views, COMBINE) if len(operands) > 1 else space.views
        if len(flat) > len(operands):
            return space.restored(pool, algebra.combine(pool, flat))
        return _moved(pool, lambda views: algebra.combine(pool, views), space)

    def pointwise(self, pool: TermPool, function: Pointwise, operands: Sequence[View]) -> View | None:
        """``function(pool, *operands)``, which takes one element of each operand for each of the result."""
        if not _has_parts(operands):
            return None
        rank = operands[0].rank
        shape = tuple(_largest([view.shape[d] for view in operands]) for d in range(rank))
        space = _refined(pool, operands, shape, rank)
        return None if space is None else _moved(pool, lambda views: function(pool, *views), space)

    def application(
        self,
        pool: TermPool,
        operation: Operation,
        attributes: tuple[Hashable, ...],
        operands: Sequence[View],
        free: int,
        summed: int,
        cores: tuple[tuple[int, ...], ...],
        fresh: tuple[int, ...],
    ) -> View | None:
        """A term before it is made: ``operands`` are views over its indices."""
        if operation in (WINDOW, CONCATENATE, CONTRACT, COMBINE) or not _has_parts(operands):
            return None
        if operation is STACK and all(view.term.operation is not CONCATENATE for view in operands):
            return None  # of stacks of stacks none is the outer one
        sizes = operands[0].shape
        if 1 not in sizes[:free] and any(map(_is_position, operands)):
            wide = [insert_dim(operand, 0, 1) for operand in operands]
            moved = [tuple(index + 1 for index in core) for core in (*cores, fresh)]
            result = self.application(pool, operation, attributes, wide, free + 1, summed, tuple(moved[:-1]), moved[-1])
            return None if result is None else remove_dim(result, 0)
        operands = [told_apart(pool, operand) for operand in operands]

        def applied(views: Sequence[View], shape: tuple[Size, ...]) -> View:
            labels: tuple[Label, ...] = tuple(range(len(shape)))
            signature = Signature(
                tuple(labels for _ in views),
                labels[:free],
                frozenset(labels[free : free + summed]),
                cores,
                {index: sizes[index] for index in fresh},
            )
            result = apply(pool, operation, attributes, views, signature)
            return dataclasses.replace(result, shape=shape[:free])

        for dim in (d for d in range(free) if d not in fresh):
            parts = _split(pool, operands, sizes, dim)
            if parts is not None:
                pool.lemma_trace.append(("pieces-outside", repr(operation.name)))
                done = [applied(views, shape) for views, shape in parts]
                return _assembled(pool, done, dim, told_apart=_is_told_apart(operands, dim))
            joint = _joint(pool, operands, dim, sizes[dim])
            if joint is not None:
                first, total, views = joint
                pool.lemma_trace.append(("windows-of-different-places", repr(operation.name)))
                whole = applied(views, (*sizes[:dim], total, *sizes[dim + 1 :]))
                return part_of(pool, whole, dim, first, sizes[dim])
        return None

    def holds_parts(self, view: View, dim: int) -> bool:
        """Whether ``dim`` is a window, or assembled from pieces."""
        return concatenated_dim(view) == dim or dim in stretch_of(view, dim).spans

    def joined(self, pool: TermPool, views: Sequence[View], dim: int) -> View:
        """The concatenation along ``dim``."""
        return joined(pool, views, dim)

    def chosen(self, pool: TermPool, view: View) -> View:
        """A view in which positions are chosen: they reach what it is computed of."""
        return at_position(pool, view)

    def narrowed(self, pool: TermPool, view: View, dim: int, start: int, length: int) -> View:
        """``length`` positions along ``dim`` from ``start`` on."""
        return narrowed(pool, view, dim, start, length)


def _moved(pool: TermPool, function: Callable[[Sequence[View]], View], space: _Space) -> View | None:
    """``function``, which is pointwise, of parts that are assembled behind it."""
    for dim in range(len(space.shape)):
        parts = _split(pool, space.views, space.shape, dim)
        if parts is not None:
            pool.lemma_trace.append(("pieces-outside", ""))
            done = [dataclasses.replace(function(views), shape=part) for views, part in parts]
            whole = _assembled(pool, done, dim, told_apart=_is_told_apart(space.views, dim))
            return space.restored(pool, whole)
        joint = _joint(pool, space.views, dim, space.shape[dim])
        if joint is not None:
            first, total, views = joint
            whole = (*space.shape[:dim], total, *space.shape[dim + 1 :])
            result = dataclasses.replace(function(views), shape=whole)
            pool.lemma_trace.append(("windows-of-different-places", ""))
            return space.restored(pool, part_of(pool, result, dim, first, space.shape[dim]))
    return None


def _has_parts(views: Sequence[View]) -> bool:
    return any(view.term.operation in _PARTS for view in views)


def _largest(sizes: Sequence[Size]) -> Size:
    return next((size for size in sizes if size != 1), 1)


def _contracted(pool: TermPool, factors: Sequence[View], shape: tuple[Size, ...], free: int) -> View:
    labels = tuple(range(len(shape)))
    sized = [dataclasses.replace(factor, shape=shape) for factor in factors]
    result = algebra.contract(pool, sized, tuple(labels for _ in sized), labels[:free], frozenset(labels[free:]))
    return dataclasses.replace(result, shape=shape[:free])


def _holds_range(pool: TermPool, term: Term) -> bool:
    if term.operation is COMBINE:
        return any(holds_range(pool, view.term) for view in term.operands)
    return holds_range(pool, term)


def _is_position(view: View) -> bool:
    return view.term.operation is WINDOW and view.term.index_sizes[view.term.fresh[0]] == 1


def _position_as_sum(pool: TermPool, view: View, shape: tuple[Size, ...]) -> View:
    """A value at one position as the sum over a range that holds no other one, next to which other ranges lie."""
    found = window_at(dataclasses.replace(view, shape=(*shape, 1)), len(shape)) if _is_position(view) else None
    if found is None:
        return view
    pool.lemma_trace.append(("sum-over-window", ""))
    size = found.source.shape[-1]
    at = range_view(pool, len(shape), (*shape, size), (found.start, found.start + 1))
    return _contracted(pool, [found.source, at], (*shape, size), len(shape))


def _opened_windows(pool: TermPool, views: Sequence[View], operation: Operation) -> list[View]:
    """Windows of products (or of sums) as products of windows: how operands were assembled before is forgotten."""
    result: list[View] = []
    for view in views:
        opened = _opened_window(pool, view, operation)
        result.extend([view] if opened is None else _opened_windows(pool, opened, operation))
    return result


def _opened_window(pool: TermPool, view: View, operation: Operation) -> list[View] | None:
    found = stretch_of(view)
    base = found.base
    if not found.spans or base.term.operation is not operation or base.term.summed:
        return None
    parts = [compose(operand, base.axes, base.shape) for operand in base.term.operands]
    for dim, span in found.spans.items():
        parts = [narrowed(pool, part, dim, *span) for part in parts]
    if operation is COMBINE:
        return [item.scaled(base.coefficient) for item in parts]
    return [parts[0].scaled(base.coefficient), *parts[1:]]


def _refined(pool: TermPool, views: Sequence[View], shape: tuple[Size, ...], free: int) -> _Space | None:
    """Every dimension split where a view has a digit's end, so that a part lies along a dimension of its own."""
    labels = tuple(range(len(shape)))
    sized = [dataclasses.replace(view, shape=shape) for view in views]
    with contextlib.suppress(UnalignedError):
        chains = refine(sized, Signature(tuple(labels for _ in sized), labels), dict(enumerate(shape)))
        fine: list[Size] = []
        back: dict[int, Sequence[Digit]] = {}
        replacement: dict[int, Sequence[Digit]] = {}
        count = 0
        if 1 not in shape and any(map(_is_position, sized)):  # a window of one lies along a dimension of one
            fine.append(1)
            back[0], count = (), 1
        for dim in labels:
            digits: list[Digit] = []
            ends = list(itertools.pairwise(chains[dim])) or [(1, 1)]
            for low, high in reversed(ends):
                extent = quotient(high, low)
                digits.append((len(fine), 1, extent))
                back[len(fine)] = [(dim, low, extent)]
                fine.append(extent)
            replacement[dim] = digits
            count += len(digits) if dim < free else 0
        wide = [told_apart(pool, substitute(view, replacement, tuple(fine))) for view in sized]
        if any(d != CONSTANT and size != fine[d] for view in wide for axis in view.axes for d, _, size in axis):
            return None  # pieces that a digit tells apart hold finer digits than these
        kept = {dim: digits for dim, digits in back.items() if dim < count}
        return _Space(wide, tuple(fine), count, kept, shape[:free])
    return None


def _split(
    pool: TermPool, views: Sequence[View], shape: tuple[Size, ...], dim: int
) -> list[tuple[list[View], tuple[Size, ...]]] | None:
    """The views cut along ``dim`` wherever one of them, a concatenation, has an end; each part with its shape."""
    ends = _ends(views, shape, dim)
    if len(ends) < 3:
        return None
    apart = _is_told_apart(views, dim)
    result: list[tuple[list[View], tuple[Size, ...]]] = []
    for start, stop in itertools.pairwise(ends):
        part = (*shape[:dim], stop - start, *shape[dim + 1 :])
        result.append(([_part(pool, view, dim, start, stop - start, told_apart=apart) for view in views], part))
    return result


def _part(pool: TermPool, view: View, dim: int, start: int, length: int, *, told_apart: bool) -> View:
    """A part along ``dim``; a single position of values that a digit tells apart is chosen in all that they are of."""
    if told_apart and view.uses(dim) and concatenated_dim(view) != dim:
        return at_position(pool, narrow(view, dim, start, length))
    return narrowed(pool, view, dim, start, length)


def _at(pool: TermPool, views: Sequence[View], dim: int, place: int) -> list[View]:
    """The views at one place of a dimension that numbers the pieces of a stack."""
    return [
        view if view.shape[dim] == 1
        else narrowed(pool, view, dim, place, 1) if concatenated_dim(view) == dim
        else at_position(pool, narrow(view, dim, place, 1))
        for view in views
    ]  # fmt: skip


def _ends(views: Sequence[View], shape: tuple[Size, ...], dim: int) -> list[int]:
    """Where a piece of one of the views ends along ``dim``, 0 included; empty for a dimension of symbolic size."""
    size = shape[dim]
    if not isinstance(size, int):
        return []
    ends = {0, size}
    for view in views:
        if view.term.operation in (CONCATENATE, STACK) and concatenated_dim(view) == dim:
            ends.update(itertools.accumulate(whole(piece.shape[dim]) for piece in pieces_of(view, dim)))
    return sorted(ends)


def _is_told_apart(views: Sequence[View], dim: int) -> bool:
    """Whether a digit tells the pieces of one of the views apart, of which ``dim`` is the number."""
    return any(view.term.operation is STACK and concatenated_dim(view) == dim for view in views)


def _assembled(pool: TermPool, views: Sequence[View], dim: int, *, told_apart: bool) -> View:
    return stacked(pool, views, dim) if told_apart else joined(pool, views, dim)


def _reads_matrix(view: View, dim: int) -> bool:
    return matrix_of(view) is not None and axis_along(view, dim) is not None


def _joint(
    pool: TermPool, views: Sequence[View], dim: int, size: Size, start: int = 0
) -> tuple[int, int, list[View]] | None:
    """``(first, total, sources)``: all views that read ``dim`` are windows, from ``first`` on, of sources of one size.

    The sources are as long as all of them are known. None where the views read all of it, or something else. Matrices
    of sliding windows, and values of counters, are as long as is wanted; ``start`` is the position of a matrix that is
    the views' first one.
    """
    if not isinstance(size, int):
        return None
    matrices = {id(view) for view in views if _reads_matrix(view, dim)}
    readers = [view for view in views if id(view) not in matrices and _reads(view, dim, size)]
    found = [window_along(pool, view, dim) for view in readers]
    parts = [part for part in found if part is not None]
    counters = [view for view, part in zip(readers, found, strict=True) if part is None]
    if not parts or not all(is_of_counters(view, dim) for view in counters):
        return None
    first = min(part.start for part in parts)
    total = first + min(whole(part.source.shape[dim]) - part.start for part in parts)
    if total == size:
        return None
    sources = {
        id(view): narrowed(pool, part.source, dim, part.start - first, total)
        for view, part in zip(readers, found, strict=True)
        if part is not None
    }
    moved = {id(v): stretched(pool, v, dim, start - first, total) for v in views if id(v) in matrices}
    moved |= {id(v): stretched_counters(pool, v, dim, -first, total) for v in counters}
    return first, total, [sources.get(id(v)) or moved.get(id(v)) or resized(v, dim, total) for v in views]


def _reads(view: View, dim: int, size: Size) -> bool:
    """Whether the view depends on ``dim``, a window of one position included."""
    return dim in stretch_of(view, dim).spans if size == 1 else view.uses(dim)


def _with_all_windows(pool: TermPool, space: _Space, dim: int) -> View | None:
    """A product that a matrix of sliding windows alone reads along ``dim``, as part of that with all windows."""
    readers = [view for view in space.views if view.uses(dim)]
    matrix = matrix_of(readers[0]) if len(readers) == 1 else None
    axis = axis_along(readers[0], dim) if readers else None
    if matrix is None or axis not in (WINDOWS, LINE):
        return None
    other = readers[0].axes[LINE if axis == WINDOWS else WINDOWS]
    start, total = matrix.everything(axis)
    length = matrix.windows if axis == WINDOWS else matrix.line
    bound = len(other) == 1 and other[0][0] >= space.free
    if not bound or start > 0 or length - start > total or (start, total) == (0, length):
        return None
    shape = (*space.shape[:dim], total, *space.shape[dim + 1 :])
    views = [
        (stretched(pool, view, dim, start, total) or view) if view is readers[0] else resized(view, dim, total)
        for view in space.views
    ]
    return part_of(pool, _contracted(pool, views, shape, space.free), dim, -start, length)
