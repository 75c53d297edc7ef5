"""Tables that are concatenations of others: look-ups in them, and the part of a gradient that one of them has."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from verifycompile.ir.algebra import CONTRACT, combine, contract, iota, open_view
from verifycompile.ir.indicator import EQUAL, equal
from verifycompile.ir.pieces import concatenated_dim, pieces_of, whole_dim_of_fresh
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.whole_dims import whole_dim
from verifycompile.rewrites.builder import PAD, Builder
from verifycompile.rewrites.indexing import one_hot


def rows_of_parts(b: Builder, table: View, index: View) -> View:
    """The rows of a table by number: each look-up is one in each part, none of which may have that row."""
    total = b.full(0, (*b.shape(index), *b.shape(table)[1:]))
    row = " ".join(f"r{dim}" for dim in range(1, b.rank(table)))
    for first, part in _parts(b, table):
        own = b.sub(index, first) if first else index
        total = b.add(total, b.contraction(f"*i v, v {row} -> *i {row}", one_hot(b, own, b.shape(part)[0]), part))
    return total


def _parts(b: Builder, table: View) -> list[tuple[int, View]]:
    """The parts of a table that are not zero, with the number of the first row of each; the table where it has none."""
    dim = b.lead
    if table.term.operation is PAD and whole_dim_of_fresh(table) == dim:
        offset, step = table.term.attributes
        return [(offset, pieces_of(table, dim)[0])] if step == 1 and isinstance(offset, int) else [(0, table)]
    if concatenated_dim(table) != dim:
        return [(0, table)]
    found: list[tuple[int, View]] = []
    first = 0
    for piece in pieces_of(table, dim):
        size = piece.shape[dim]
        if not isinstance(size, int):
            return [(0, table)]
        found += [] if piece.is_zero else [(first, piece)]
        first += size
    return found


def narrow_look_ups(pool: TermPool, view: View, dim: int, start: Size, length: int) -> View | None:
    """Some rows of what is added up by row number: what has one of their numbers. None for any other sum."""
    if view.term.operation is not CONTRACT or not isinstance(start, int):
        return None
    opened = open_view(view)
    numbered = [operand for operand in opened.operands if operand.uses(dim)]
    if len(numbered) != 1 or numbered[0].term.operation is not EQUAL:
        return None
    compared = open_view(numbered[0]).operands
    index = next((x for x, own in (compared, compared[::-1]) if whole_dim(own, opened.shape) == dim), None)
    if index is None or index.uses(dim):
        return None
    shape = (*opened.shape[:dim], length, *opened.shape[dim + 1 :])
    counter = iota(pool, length)
    own = View(counter.coefficient, counter.term, shape, tuple(((dim, 1, length),) for _ in counter.axes if length > 1))
    moved = combine(pool, [dataclasses.replace(index, shape=shape), pool.constant(Fraction(-start), shape)])
    rest = [dataclasses.replace(operand, shape=shape) for operand in opened.operands if operand is not numbered[0]]
    operands = [equal(pool, moved, own), *rest]
    labels = tuple(range(len(shape)))
    inputs = tuple(labels for _ in operands)
    pool.lemma_trace.append(("slice-of-operands", repr(view.term)))
    return contract(pool, operands, inputs, labels[: view.rank], frozenset(opened.summed)).scaled(view.coefficient)
