"""Places of extremes among parts: the part with the largest element, and the place in it, are that in the whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import CONTRACT, IOTA, open_view
from verifycompile.ir.build import Label, Signature, apply
from verifycompile.ir.indicator import EQUAL
from verifycompile.ir.relabel import UnalignedError, remove_dim
from verifycompile.ir.scalar import as_scalar, multiply
from verifycompile.ir.size import Size
from verifycompile.ir.term import Operation, TermPool, View
from verifycompile.rewrites.finders.finder import whole_view
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.operators.extreme_places import ARG_EXTREME
from verifycompile.rewrites.operators.reduction import EXTREMES

_EXTREME_OF = {ARG_EXTREME[kind]: EXTREMES[kind] for kind in ARG_EXTREME}


@matching_lemma("VL147", "place-in-parts")
def places_in_parts(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Where the first largest element of a table of equal parts is: n times the first part whose largest element is
    the largest of all, and the place of the first largest element in that part, of n elements.

    So ranks choose among the candidates of all ranks. No equation of the table says this: the place in the whole is
    over two indices that count as one, and an equation has no operator that makes one index of two.
    """
    for upper in operands:
        if upper.term.operation not in _EXTREME_OF:
            continue
        for lower in operands:
            whole = _joined(pool, upper, lower, shape)
            if whole is not None:
                return [*(v for v in operands if v is not upper and v is not lower), whole.scaled(lower.coefficient)]
    return None


def _joined(pool: TermPool, upper: View, lower: View, shape: tuple[Size, ...]) -> View | None:
    """The place in the whole, where ``upper`` is a multiple of the part and ``lower`` the place in it."""
    operation = upper.term.operation
    table = _table(upper.unscaled(), shape, _EXTREME_OF[operation])
    if table is None:
        return None
    values, length = table
    for part in _looked_up(lower, upper.unscaled(), shape, operation):
        same = (part.term, part.axes, part.coefficient) == (values.term, values.axes, values.coefficient)
        if same and upper.coefficient == multiply(lower.coefficient, as_scalar(length)):
            rank = len(shape)
            labels: tuple[Label, ...] = tuple(range(rank + 2))
            signature = Signature((labels,), (*labels[:rank], "fresh"), frozenset(), (labels[rank:],), {"fresh": 1})
            with contextlib.suppress(UnalignedError):
                return remove_dim(apply(pool, operation, (), (values,), signature), rank)
    return None


def _table(upper: View, shape: tuple[Size, ...], extreme: Operation) -> tuple[View, Size] | None:
    """What the place is one of the extremes of: over the parts and the places in a part, whose number is given."""
    opened = open_view(whole_view(upper, shape))
    (extremes,) = opened.operands
    if extremes.term.operation is not extreme or extremes.coefficient != 1:
        return None
    inner = open_view(extremes)
    (values,) = inner.operands
    return values, inner.shape[-1]


def _looked_up(lower: View, upper: View, shape: tuple[Size, ...], operation: Operation) -> Iterator[View]:
    """What the places are those of: ``sum over h of (upper == h) place(h)``, over the parts and the places in one."""
    if lower.term.operation is not CONTRACT or len(lower.term.operands) != 2:
        return
    opened = open_view(whole_view(lower.unscaled(), shape))
    part = ((len(shape), 1, opened.shape[-1]),)
    for mask, place in (opened.operands, opened.operands[::-1]):
        if mask.term.operation is not EQUAL or place.term.operation is not operation:
            continue
        sides = open_view(mask).operands
        wide = whole_view(upper, opened.shape)
        for number, counter in (sides, sides[::-1]):
            counts = counter.term.operation is IOTA and counter.coefficient == 1 and counter.axes == (part,)
            if counts and (number.term, number.axes, number.coefficient) == (wide.term, wide.axes, 1):
                inner = open_view(place)
                if len(inner.shape) == len(opened.shape) + 1:
                    yield inner.operands[0]
