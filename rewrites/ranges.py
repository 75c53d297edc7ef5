"""Sums over ranges of a dimension: neighbouring ranges are one range, and that of all positions is no restriction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from verifycompile.ir import algebra
from verifycompile.ir.build import window
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window import RANGE, range_view, window_at
from verifycompile.rewrites.matching import matching_lemma


@dataclasses.dataclass(frozen=True)
class _Restricted:
    """A sum over the last dimension of ``inner``, from ``start`` up to ``stop``."""

    summand: View
    inner: View
    start: int
    stop: int


@matching_lemma("VL71", "neighbouring-ranges")
def merge_ranges(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Two summands that are sums of one value over neighbouring ranges, as one sum."""
    found = [restricted for operand in operands if (restricted := _restricted(pool, operand, shape)) is not None]
    for left in found:
        for right in found:
            if left is right or left.stop != right.start or left.inner != right.inner:
                continue
            pool.lemma_trace.append(("neighbouring-ranges", ""))
            rest = [v for v in operands if v is not left.summand and v is not right.summand]
            return [*rest, _sum(pool, left.inner, left.start, right.stop)]
    return None


def _restricted(pool: TermPool, view: View, shape: tuple[Size, ...]) -> _Restricted | None:
    if view.term.operation is not algebra.CONTRACT or not view.term.summed:
        return None
    sized = dataclasses.replace(view, shape=shape)
    opened = algebra.open_view(sized)
    for mask in opened.operands:
        if mask.term.operation is not RANGE or len(mask.axes[0]) != 1:
            continue
        dim, divisor, size = mask.axes[0][0]
        if dim not in opened.summed or divisor != 1 or size != opened.shape[dim]:
            continue
        others = [v for v in opened.operands if v is not mask]
        if not others:
            continue
        labels = tuple(range(len(opened.shape)))
        output = (*labels[: len(shape)], dim)
        summed = frozenset(d for d in opened.summed if d != dim and any(v.uses(d) for v in others))
        if any(not any(v.uses(d) for v in others) for d in opened.summed if d != dim):
            continue
        inner = algebra.contract(pool, others, tuple(labels for _ in others), output, summed)
        start, stop = mask.term.attributes
        assert isinstance(start, int)
        assert isinstance(stop, int)
        return _Restricted(view, inner.scaled(view.coefficient), start, stop)
    return None


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
