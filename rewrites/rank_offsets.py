"""Slices and places whose offsets are the ranks' coordinates: each reads or writes a block of its own."""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir import relabel
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import Digit, View
from verifycompile.rewrites.builder import Builder, Number
from verifycompile.rewrites.registry import UNREPRESENTABLE, UnsupportedError


def narrow_by_coordinate(
    b: Builder, view: View, position: int, parts: list[tuple[int, Size]], base: Size, length: Size
) -> View:
    smallest = min((step for _, step in parts if isinstance(step, int)), default=length)
    if isinstance(smallest, int) and isinstance(length, int) and isinstance(base, int) and 0 < length < smallest:
        # Every rank's slice is within a block of its own.
        inside = base % smallest
        if inside + length <= smallest:
            block = narrow_by_coordinate(b, view, position, parts, base - inside, smallest)
            return b.narrow(block, position - b.lead, inside, length)
    axes = _steps(b, parts, length)
    digits: list[Digit] = [*((axis, 1, b.mesh[axis]) for axis in axes), (position, 1, length)]
    whole = b.narrow(view, position - b.lead, base, product(size for _, _, size in digits))
    return relabel.replace_dim(whole, position, digits, length)


def _steps(b: Builder, parts: Sequence[tuple[int, Size]], length: Size) -> list[int]:
    """The mesh axes of an offset, outermost first, if every rank's ``length`` elements follow another's."""
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


def placed_by_coordinate(b: Builder, view: View, dim: int, start: Number) -> tuple[View, int, Size]:
    """``view`` at its rank's place among those of all ranks along ``dim``, zero elsewhere; with ``dim`` and the
    offset, the same on all ranks, at which these places begin: the arguments of ``pad``.
    """
    parts, base = b.affine_parts(start)
    length = b.shape(view)[dim]
    axes = _steps(b, parts, length)
    result = view
    for position, axis in enumerate(axes, start=dim):
        result = b.unsqueeze(result, position)
        coordinate = next(symbol for symbol, number in b.coordinates.items() if number == axis)
        mask = b.equal(b.iota(b.mesh[axis]), coordinate)
        for _ in range(b.rank(result) - position - 1):
            mask = b.unsqueeze(mask, -1)
        result = b.mul(result, mask)
    shape = list(b.shape(view))
    shape[dim] = product((length, *(b.mesh[axis] for axis in axes)))
    if isinstance(base, int) and base < 0:
        raise UnsupportedError(UNREPRESENTABLE, f"places that are counted from the end: {start}")
    return b.reshape(result, shape), dim, base
