"""Sums over ranges of a dimension: neighbouring ranges are one range, and that of all positions is no restriction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from verifycompile.ir import algebra, relabel
from verifycompile.ir.build import window
from verifycompile.ir.size import Size
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.ir.window import RANGE, range_view, window_at
from verifycompile.rewrites.matching import matching_lemma

_DEPTH = 3
"""Of products among the factors of products."""


@dataclasses.dataclass(frozen=True)
class _Restricted:
    """A sum over the last dimension of ``inner``, from ``start`` up to ``stop``.

    ``again``: the same sum over another range.
    """

    summand: View
    inner: View
    start: int
    stop: int
    again: Callable[[int, int], View]


@matching_lemma("VL71", "neighbouring-ranges")
def merge_ranges(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Two summands that are sums of one value over neighbouring ranges, as one sum."""
    found = [item for operand in operands for item in _restrictions(pool, operand, shape)]
    if len(found) < 2:
        return None
    for left in found:
        for right in found:
            if left.summand is right.summand or left.stop != right.start or left.inner != right.inner:
                continue
            pool.lemma_trace.append(("neighbouring-ranges", ""))
            rest = [v for v in operands if v is not left.summand and v is not right.summand]
            return [*rest, left.again(left.start, right.stop)]
    return None


def _restrictions(pool: TermPool, view: View, shape: tuple[Size, ...]) -> list[_Restricted]:
    """The ways to read a summand as a sum over a range, that of one of its factors included."""
    if not _holds_range(pool, view.term):
        return []
    sized = dataclasses.replace(view, shape=shape)
    return [_Restricted(view, inner, *span, again) for inner, span, again in _opened(pool, sized, _DEPTH)]


def _holds_range(pool: TermPool, term: Term, depth: int = _DEPTH) -> bool:
    """Whether a product, or a product among its factors, has a range among its factors."""
    if term.operation is not algebra.CONTRACT:
        return False
    key = (term, depth)
    known = pool.ranges_held.get(key)
    if known is None:
        factors = [view.term for view in term.operands]
        known = any(factor.operation is RANGE for factor in factors) or (
            depth > 0 and any(_holds_range(pool, factor, depth - 1) for factor in factors)
        )
        pool.ranges_held[key] = known
    return known


_Found = tuple[View, tuple[int, int], Callable[[int, int], View]]


def _opened(pool: TermPool, view: View, depth: int) -> list[_Found]:
    """``(inner, (start, stop), again)``: the view is the sum of ``inner`` over that range of its last dimension."""
    opened = algebra.open_view(view)
    found: list[_Found] = []
    for factor in opened.operands:
        others = [v for v in opened.operands if v is not factor]
        if factor.term.operation is RANGE:
            inner = _without_mask(pool, view, opened, factor, others)
            if inner is not None:
                again = functools.partial(_masked, pool, view, opened, factor.axes[0][0][0], others)
                found.append((inner, _span(factor.term), again))
        elif depth and _holds_range(pool, factor.term, depth - 1):
            # The other factors and sums go into the sum of this factor.
            for part, span, _ in _opened(pool, factor, depth - 1):
                wide = [relabel.insert_dim(v, v.rank, part.shape[-1]) for v in others]
                inner = _product(pool, view, (*wide, part), opened.summed)
                if inner is not None:
                    found.append((inner, span, functools.partial(_sum, pool, inner)))
    return found


def _span(mask: Term) -> tuple[int, int]:
    start, stop = mask.attributes
    assert isinstance(start, int)
    assert isinstance(stop, int)
    return start, stop


def _without_mask(
    pool: TermPool, view: View, opened: algebra.Opened, mask: View, others: Sequence[View]
) -> View | None:
    if len(mask.axes[0]) != 1:
        return None
    dim, divisor, size = mask.axes[0][0]
    if dim not in opened.summed or divisor != 1 or size != opened.shape[dim]:
        return None
    return _product(pool, view, others, [d for d in opened.summed if d != dim], last=dim)


def _product(
    pool: TermPool, view: View, factors: Sequence[View], summed: Sequence[int], last: int | None = None
) -> View | None:
    """The view's own product of ``factors`` over its dimensions and ``last``, which is the factors' last by default."""
    if not factors or any(not any(v.uses(d) for v in factors) for d in summed):
        return None
    labels = tuple(range(factors[0].rank))
    output = (*labels[: view.rank], labels[-1] if last is None else last)
    product = algebra.contract(pool, factors, tuple(labels for _ in factors), output, frozenset(summed))
    return product.scaled(view.coefficient)


def _masked(
    pool: TermPool, view: View, opened: algebra.Opened, dim: int, factors: Sequence[View], start: int, stop: int
) -> View:
    """The view's sum of products of ``factors``, all dimensions at once, ``dim`` from ``start`` up to ``stop``."""
    shape = opened.shape
    whole = start == 0 and stop == shape[dim]
    masked = [*factors] if whole else [*factors, range_view(pool, dim, shape, (start, stop))]
    labels = tuple(range(len(shape)))
    inputs = tuple(labels for _ in masked)
    product = algebra.contract(pool, masked, inputs, labels[: view.rank], frozenset(opened.summed))
    return product.scaled(view.coefficient)


def _sum(pool: TermPool, inner: View, start: int, stop: int) -> View:
    last = inner.rank - 1
    if start == 0 and stop == inner.shape[last]:
        return algebra.sum_over(pool, inner, [last])
    labels = tuple(range(inner.rank))
    mask = range_view(pool, last, inner.shape, (start, stop))
    return algebra.contract(pool, [inner, mask], (labels, labels), labels[:last], frozenset({last}))


def join_windows(pool: TermPool, views: Sequence[View], position: int) -> View | None:
    """The concatenation of windows of one value that lie next to each other; None for anything else."""
    found = [window_at(view, position) for view in views]
    first = found[0]
    if first is None or len(views) < 2:
        return None
    stop = first.start
    for view, part in zip(views, found, strict=True):
        length = view.shape[position]
        if part is None or part.source != first.source or part.start != stop or not isinstance(length, int):
            return None
        stop += length
    pool.lemma_trace.append(("neighbouring-windows", ""))
    return window(pool, first.source, position, first.start, stop - first.start)
