"""Masks that hold wherever a row is there, which the row's value need not have as a factor.

A weight that is zero for the tokens of other ranks' experts is not zero in the rows sorted to an own expert.
"""

from __future__ import annotations

import dataclasses

from verifycompile.ir.algebra import CONTRACT, open_view
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.rows.row_values import Counts, Ragged
from verifycompile.rewrites.rows.rows import before_and_after_cut
from verifycompile.rewrites.side_conditions.index_arithmetic import implied


def without_masks_of_rows(b: Builder, counts: Counts, value: Ragged) -> Ragged:
    """The rows before the cut without those masks that z3 proves wherever such a row is there; the others as they are.

    What is in a row that is not there does not matter.
    """
    masks = [factor for factor in _factors(value.view) if factor.term.operation.indicator]
    parts = before_and_after_cut(b, counts, value) if masks else []
    if len(parts) < 2 or value.dim != 0:
        return value
    first = parts[0]
    present = first.rows.present
    for _ in range(b.rank(first.view) - 1):
        present = b.unsqueeze(present, -1)
    (present, view), kept = b.aligned(present, first.view), list[View]()
    for factor in _factors(view):
        if not (factor.term.operation.indicator and implied([present], [factor], view.shape)):
            kept.append(factor)
    if len(kept) == len(_factors(view)):
        return value
    found = b.mul(*kept) if kept else b.full(1, b.shape(view))
    whole = dataclasses.replace(found.scaled(view.coefficient), shape=view.shape)
    return dataclasses.replace(value, view=b.concatenate([whole, parts[1].view], 0))


def _factors(view: View) -> list[View]:
    is_product = view.term.operation is CONTRACT and not view.term.summed
    return list(open_view(view).operands) if is_product else [view.unscaled()]
