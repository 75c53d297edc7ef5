"""Padded and stacked values as products: what is placed, times one where its place is.

So the ring's laws reach through them. The gradients of the parts of a fused projection, each zero elsewhere, are one
sum, whether the parts were interleaved, halves or read by slices, and whether they were added before or afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from verifycompile.ir.algebra import combine, iota, open_view
from verifycompile.ir.indicator import equal
from verifycompile.ir.pieces import STACK
from verifycompile.ir.relabel import substitute
from verifycompile.ir.scalar import ONE, as_scalar
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, Digit, Term, TermPool, View


def placed(pool: TermPool, term: Term) -> list[tuple[View, View]]:
    """Each part of a padded or stacked value, and one at its place and zero elsewhere: over free and bound indices.

    Sizes that are no numbers have no places: such a value is a part of its own.
    """
    shape = term.index_sizes
    whole = View(ONE, term, shape[: term.free], tuple(((i, 1, size),) for i, size in enumerate(shape[: term.free])))
    opened, (fresh,) = open_view(whole), term.fresh
    total = shape[fresh]
    if term.operation is STACK:
        parts = enumerate(opened.operands)
        return [(part, _is_at(pool, opened.shape, [(fresh, 1, total)], number)) for number, part in parts]
    (content,), (core,), (start, step) = opened.operands, opened.cores, term.attributes
    length, digits = 1, list[Digit]()
    for dim in reversed(core):
        digits.insert(0, (dim, length, shape[dim]))
        length = product((length, shape[dim]))
    if not all(isinstance(number, int) for number in (start, step, total, length)):
        return [(whole, pool.constant(ONE, whole.shape))]
    return [_padded(pool, content, fresh, digits, (int(start), int(step)))]  # type: ignore[call-overload]  # integers


def _padded(
    pool: TermPool, content: View, fresh: int, digits: Sequence[Digit], places: tuple[int, int]
) -> tuple[View, View]:
    """A part that starts at a multiple of its length is a digit of the whole; any other one is placed by a sum.

    ``digits``: of the part, with the dimensions that count them. ``places``: the first one, and their distance.
    """
    shape, (start, step), core = content.shape, places, [dim for dim, _, _ in digits]
    total, length = int(shape[fresh]), math.prod(int(size) for _, _, size in digits)
    if step == 1 and start % length == 0 == total % length:
        kept = tuple(1 if dim in core else size for dim, size in enumerate(shape))
        read: dict[int, Sequence[Digit]] = {dim: [(dim, 1, size)] for dim, size in enumerate(kept)}
        read |= {dim: [(fresh, divisor, size)] for dim, divisor, size in digits}
        place = _is_at(pool, kept, [(fresh, length, total // length)], start // length)
        return substitute(content, read, kept), place
    within = iota(pool, length)
    spelled = View(ONE, within.term, shape, (tuple((dim, 1, size) for dim, _, size in digits),)).scaled(as_scalar(step))
    whole = View(ONE, iota(pool, total).term, shape, (((fresh, 1, total),),))
    return content, equal(pool, combine(pool, [spelled, pool.constant(as_scalar(start), shape)]), whole)


def _is_at(pool: TermPool, shape: tuple[Size, ...], digits: list[Digit], number: int) -> View:
    """Where digits spell a number: of two counters, so that a sum over the digits is what is read at the place."""
    total = digits[0][2]
    counter = iota(pool, total)
    place, wanted = (View(ONE, counter.term, shape, (axis,)) for axis in (tuple(digits), ((CONSTANT, number, total),)))
    return equal(pool, place, wanted)
