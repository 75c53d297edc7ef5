"""Dimensions that are read in other digits than those that their values are made of.

``x.view(4, 15)`` of a tensor of shape (6, 10) is no relabelling of digits, and neither is the half of three matrices in
one. ``RESHAPE`` makes one digit of such dimensions. It moves out of every operation that treats positions alike, and is
gone where its reader's digits fall between those of its operand: of what all ranks read together, as a sum over them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Mapping, Sequence

from verifycompile.ir import relabel
from verifycompile.ir.build import Label, Shape, Signature, apply, refine
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, RESHAPE, Digit, Operation, TermPool, View


def whole(pool: TermPool, view: View, dim: int) -> View:
    """The same value, of which ``dim`` is one digit, so that it can be read in any other digits."""
    labels = tuple(range(view.rank))
    output = tuple(-1 if d == dim else d for d in labels)
    signature = Signature((labels,), output, frozenset(), ((dim,),), {-1: view.shape[dim]})
    return apply(pool, RESHAPE, (), (view,), signature)


def read_back(view: View) -> View:
    """What a reshape is made of, where the digits of the view fall between those of its operand; else the view."""
    term = view.term
    while term.operation is RESHAPE:
        (fresh,), (core,) = term.fresh, term.cores
        replacement: dict[int, Sequence[Digit]] = dict(enumerate(view.axes))
        flat, inner = replacement.pop(fresh), 1
        try:
            for index in reversed(core):
                replacement[index] = relabel.extract(flat, inner, term.index_sizes[index])
                inner = product((inner, term.index_sizes[index]))
            view = relabel.substitute(term.operands[0], replacement, view.shape).scaled(view.coefficient)
        except relabel.UnalignedError:
            return view
        term = view.term
    return view


def substitute(pool: TermPool, view: View, replacement: Mapping[int, Sequence[Digit]], shape: tuple[Size, ...]) -> View:
    """``relabel.substitute``, of reshapes where the digits do not fall between those of the view."""
    for dim in range(view.rank):
        if not _is_aligned(view, dim, replacement):
            view = whole(pool, view, dim)
    return read_back(relabel.substitute(view, replacement, shape))


def _is_aligned(view: View, dim: int, replacement: Mapping[int, Sequence[Digit]]) -> bool:
    try:
        for digit in (d for axis in view.axes for d in axis if d[0] == dim != CONSTANT):
            relabel.extract(replacement[dim], digit[1], digit[2])
    except relabel.UnalignedError:
        return False
    return True


def reshape(pool: TermPool, view: View, target: tuple[Size, ...], lead: int) -> View:
    """``relabel.reshape``, of a reshape of the dimensions behind those that both shapes have in common."""
    old = view.shape[lead:]
    same = len(list(itertools.takewhile(lambda sizes: sizes[0] == sizes[1], zip(old, target, strict=False))))
    flat = read_back(relabel.reshape(view, (*old[:same], product(old[same:])), lead))
    return read_back(relabel.reshape(whole(pool, flat, lead + same), target, lead))


def moved_out(pool: TermPool, operation: Operation, attributes: tuple[Hashable, ...], shape: Shape) -> View | None:
    """The operation over its free indices on what reshapes are made of; None where it is that, or cannot be."""
    wide = shape.wide
    inside = [read_back(operand) for operand in wide]
    if all(map(operator.is_, inside, wide)):
        return None
    labels = tuple(range(len(shape.index_sizes)))
    summed = frozenset(labels[shape.free : shape.free + shape.summed])
    fresh: dict[Label, Size] = {index: shape.index_sizes[index] for index in shape.fresh}
    own = Signature((labels,) * len(wide), labels[: shape.free], summed, shape.cores, fresh)
    try:
        refine(inside, own, dict(enumerate(shape.index_sizes)))
    except relabel.UnalignedError:  # digits of one are no digits of another
        return None
    return apply(pool, operation, attributes, inside, own)
