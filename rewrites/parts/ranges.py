"""Concatenations of windows that lie next to each other."""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window import window_at
from verifycompile.ir.window_moves import window


def join_windows(pool: TermPool, views: Sequence[View], position: int) -> View | None:
    """The concatenation of windows of one value that lie next to each other; None for anything else."""
    found = [window_at(view, position) for view in views]
    first = found[0]
    if first is None or len(views) < 2:
        return None
    stop = first.start
    for view, part in zip(views, found, strict=True):
        if part is None or part.source != first.source or part.start != stop:
            return None
        stop += int(view.shape[position])
    pool.lemma_trace.append(("neighbouring-windows", ""))
    return window(pool, first.source, position, first.start, stop - first.start)
