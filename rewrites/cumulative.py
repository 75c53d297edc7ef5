"""Cumulative sums as products with a triangular mask: the sum up to ``i`` is that of ``[j <= i] x[j]`` over ``j``.

So a part of the positions is a part of the mask, and the sums of parts are combined as all sums under masks are
(``finders/prefixes.py``).
"""

from __future__ import annotations

import torch

from verifycompile.ir import indicator
from verifycompile.ir.algebra import contract, iota
from verifycompile.ir.build import Label
from verifycompile.ir.relabel import insert_dim
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.elementwise import cast
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten


@operator(aten.cumsum.default)
def cumsum(b: Builder, self: View, dim: int, dtype: torch.dtype | None) -> View:
    value = cast(b, self, b.dtype_of("self"), b.call.dtype if dtype is None else dtype)
    return cumulative_sum(b, value, dim) if b.rank(value) else value


def cumulative_sum(b: Builder, view: View, dim: int) -> View:
    """At each position of ``dim`` the sum of all elements up to it."""
    position = b.dim(view, dim)
    counter = iota(b.pool, view.shape[position])
    mask = indicator.less_equal(b.pool, insert_dim(counter, 1), insert_dim(counter, 0))
    labels: tuple[Label, ...] = tuple(range(view.rank))
    output = tuple("up to" if label == position else label for label in labels)
    return contract(b.pool, [view, mask], [labels, (position, "up to")], output, frozenset({position}))
