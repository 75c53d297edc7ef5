"""Look-ups in tables that are concatenations of others, or have zeros around them, and of rows that are counted."""

from __future__ import annotations

from verifycompile.ir.pieces import concatenated_dim, pieces_of, whole_dim_of_fresh
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.operators.indexing import one_hot
from verifycompile.rewrites.operators.known_places import read
from verifycompile.rewrites.operators.padding import part_of


def rows_of_parts(b: Builder, table: View, index: View) -> View:
    """The rows of a table by number: those that are counted are a slice; else each look-up is one in each part, none of
    which may have that row.
    """
    counted = read(b, table, index, counted=True)
    if counted is not None:
        return counted
    total = b.full(0, (*b.shape(index), *b.shape(table)[1:]))
    row = " ".join(f"r{dim}" for dim in range(1, b.rank(table)))
    for first, part in _parts(b, table):
        hot = _one_hot_from(b, index, first, b.shape(part)[0], b.shape(table)[0])
        total = b.add(total, b.contraction(f"*i v, v {row} -> *i {row}", hot, part))
    return total


def _one_hot_from(b: Builder, index: View, first: int, size: Size, total: Size) -> View:
    """Where the index is a place from ``first`` on: a part of all places, as a window or where digits spell it."""
    if isinstance(size, int) and isinstance(total, int) and size and total % size == first % size == 0:
        return part_of(b, one_hot(b, index, total), b.rank(index), first, size)
    return one_hot(b, b.sub(index, first) if first else index, size)


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
