"""Slices whose offsets are the ranks' coordinates: each reads a block of its own."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from verifycompile.ir.build import reindexed
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Digit, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


def narrow_by_coordinate(
    b: Builder, view: View, position: int, parts: list[tuple[int, Size]], base: Size, length: Size
) -> View:
    smallest = min((step for _, step in parts if isinstance(step, int)), default=0)
    if isinstance(length, int) and isinstance(base, int) and 0 < length < smallest:
        # Every rank's slice is within a block of its own.
        inside = base % smallest
        if inside + length <= smallest:
            block = narrow_by_coordinate(b, view, position, parts, base - inside, smallest)
            return b.narrow(block, position - b.lead, inside, length)
    axes = steps_of(b, parts, base, length)
    digits: list[Digit] = [*((axis, 1, b.mesh[axis]) for axis in axes), (position, 1, length)]
    whole = b.narrow(view, position - b.lead, base, product(size for _, _, size in digits))
    return reindexed(b.pool, whole, {position: digits}, (*view.shape[:position], length, *view.shape[position + 1 :]))


def steps_of(b: Builder, parts: Sequence[tuple[int, Size]], base: Size, length: Size) -> list[int]:
    """The mesh axes of an offset, outermost first, if every rank's ``length`` elements follow another's."""
    if sympy.sympify(base).is_negative:
        raise UnsupportedError(UNREPRESENTABLE, f"places that are counted from the end: {base}")
    axes: list[int] = []
    span = length
    pending = list(parts)
    while pending:
        part = next((p for p in pending if p[1] == span), None)
        if part is None:
            raise UnsupportedError(
                UNREPRESENTABLE, f"slice offset steps by {pending[0][1]} a rank where the slices are {span} long"
            )
        pending.remove(part)
        axes.insert(0, part[0])
        span = product((span, b.mesh[part[0]]))
    return axes
