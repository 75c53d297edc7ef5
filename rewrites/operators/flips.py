"""Flips: the last position first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verifycompile.ir import relabel
from verifycompile.ir.algebra import CONTRACT, contract, elementwise, open_view
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.term import CONSTANT, Operation, View
from verifycompile.ir.whole_dims import whole_dim
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import operator

aten = torch.ops.aten

FLIP = Operation("flip", linear=frozenset({0}), copies=True)


@operator(aten.flip.default)
def flip(b: Builder, self: View, dims: Sequence[int]) -> View:
    result = self
    for dim in sorted({d % b.rank(self) for d in dims}) if b.rank(self) else ():
        position = b.dim(result, dim)
        back = _flipped_back(result, position) or _flipped_sum(b, result, position)
        result = back or b.along(FLIP, (), result, dim)
    return result


def _flipped_back(view: View, position: int) -> View | None:
    """What was flipped along a dimension, where ``view`` is that: flipped twice, a value is itself."""
    term = view.term
    if term.operation is not FLIP or len(term.fresh) != 1 or [len(core) for core in term.cores] != [1]:
        return None
    (fresh,), ((core,),) = term.fresh, term.cores
    own = [digit for digit in view.axes[fresh] if digit[0] != CONSTANT]
    elsewhere = [digit for number, axis in enumerate(view.axes) if number != fresh for digit in axis]
    if own != [(position, 1, view.shape[position])] or term.shape[fresh] != view.shape[position]:
        return None
    if any(digit[0] == position for digit in elsewhere):
        return None
    places = {**dict(enumerate(view.axes)), core: view.axes[fresh]}
    return relabel.substitute(term.operands[0], places, view.shape).scaled(view.coefficient)


def _flipped_sum(b: Builder, view: View, position: int) -> View | None:
    """A flipped cumulative sum of a flipped value: the sum of all elements from each position on."""
    if view.term.operation is not CONTRACT or not view.term.summed:
        return None
    opened = open_view(view)
    outer = [v for v in opened.operands if v.uses(position)]
    if len(outer) != 1 or outer[0].term.operation is not AT_MOST:
        return None
    left, right = open_view(outer[0]).operands
    dims = [whole_dim(side, opened.shape) for side in (left, right)]
    bound = next((dim for dim in dims if dim in opened.summed), None)
    if bound is None or set(dims) != {bound, position} or left.term is not right.term:
        return None
    factors = [elementwise(b.pool, AT_MOST, outer[0].term.attributes, (right, left))]
    for view_of_all in opened.operands:
        if view_of_all is outer[0]:
            continue
        back = _flipped_back(view_of_all, bound) if view_of_all.uses(bound) else view_of_all
        if back is None:
            return None
        factors.append(back)
    labels = tuple(range(len(opened.shape)))
    total = contract(b.pool, factors, [labels] * len(factors), labels[: view.rank], frozenset(opened.summed))
    return total.scaled(view.coefficient)
