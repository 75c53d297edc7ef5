"""By which blocks of a dimension an inequality between counted indices goes on."""

from __future__ import annotations

from fractions import Fraction

from verifycompile.ir.algebra import open_view
from verifycompile.ir.inequality import NO_POOL, Difference, merged_digits, split_digits
from verifycompile.ir.scalar import ONE
from verifycompile.ir.term import View


def block_of(view: View, dim: int) -> int | None:
    """Length of the blocks of ``dim`` by which the inequality ``view`` goes on: what its other indices span.

    None where the dimension is no number that is counted as a whole, or nothing spans a part of it.
    """
    left, right = open_view(view).operands
    difference = Difference(NO_POOL, view.shape)
    if not (difference.take(right, ONE) and difference.take(left, -ONE)) or difference.others:
        return None
    digits = {d: w for d, w in split_digits(difference.digits).items() if w != 0}
    merged = merged_digits({d: w for d, w in digits.items() if d[0] == dim})
    size = view.shape[dim]
    own = merged.get((dim, 1, size))
    if len(merged) != 1 or not isinstance(own, Fraction) or not isinstance(size, int):
        return None
    lengths: list[int] = []
    for (other, _, extent), weight in digits.items():
        if other == dim or not isinstance(weight, Fraction) or not isinstance(extent, int):
            continue
        span = abs(weight / own) * extent
        if span.denominator == 1 and span < size and size % span == 0:
            lengths.append(int(span))
    return max(lengths, default=None)
