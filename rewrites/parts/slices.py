"""Slices of computed values: where an operand is a concatenation, the slice is computed from its parts.

A flat buffer holds parameters one after the other, and what is computed of it element by element is taken apart again:
``(cat(a, b) - cat(c, d))[:n]`` is ``a - c``. The operation must treat the positions of the dimension alike, which every
free index of a term says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from verifycompile.ir.algebra import open_view, reapply
from verifycompile.ir.term import TermPool, View

Narrow = Callable[[View], View]
Part = Callable[[View], View | None]

_MAX_DEPTH = 16


def narrow_operands(
    pool: TermPool, view: View, dim: int, part: Part, narrow: Narrow, *, elementwise: bool
) -> View | None:
    """The slice of ``view`` along ``dim`` as its operation on sliced operands; None where none of them has parts.

    ``part``: the slice of a view that is made of pieces, else None. ``narrow``: the slice of any view.
    ``elementwise``: go no further than through operations that compute each element from one of each operand; else
    also through sums of one value, as ranks add theirs. Products that are summed are whole computations: no further.
    """
    return _Descent(pool, dim, part, narrow, elementwise=elementwise).inside(view, _MAX_DEPTH)


class _Descent:
    """One slice. What was found for a view is kept, since values are used more than once."""

    def __init__(self, pool: TermPool, dim: int, part: Part, narrow: Narrow, *, elementwise: bool) -> None:
        self._pool, self._dim, self._part, self._narrow = pool, dim, part, narrow
        self._elementwise = elementwise
        self._found: dict[View, View | None] = {}

    def inside(self, view: View, depth: int) -> View | None:
        if view not in self._found:
            self._found[view] = self._inside(view, depth)
        return self._found[view]

    def _inside(self, view: View, depth: int) -> View | None:
        term = view.term
        if depth == 0 or any(d[0] == self._dim for i in term.fresh for d in view.axes[i]):
            return None
        sums = len(term.index_sizes) != term.free
        if sums and (self._elementwise or len(term.operands) != 1):
            return None
        opened = open_view(view)
        parts: list[View | None] = []
        for operand in opened.operands:
            uses = operand.uses(self._dim)
            parts.append((self._part(operand) or self.inside(operand, depth - 1)) if uses else None)
        length = next((part.shape[self._dim] for part in parts if part is not None), None)
        if length is None:
            return None
        shape = (*view.shape[: self._dim], length, *view.shape[self._dim + 1 :])
        self._pool.lemma_trace.append(("slice-of-operands", repr(term)))
        operands = [part or self._narrow(operand) for operand, part in zip(opened.operands, parts, strict=True)]
        result = reapply(self._pool, dataclasses.replace(view, shape=shape), opened, operands)
        return dataclasses.replace(result.scaled(view.coefficient), shape=shape)
