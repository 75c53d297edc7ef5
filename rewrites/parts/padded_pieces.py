"""Sums of padded pieces: the gradients of the parts of a tensor, each zero elsewhere, added up to one gradient."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from verifycompile.ir.pieces import STACK, concatenated_dim, pieces_of, whole_dim_of_fresh
from verifycompile.ir.similarity import similarity_key
from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.matching import matching_lemma
from verifycompile.rewrites.operations import PAD
from verifycompile.rewrites.parts.similar import join_similar


@matching_lemma("VL48", "sum-of-padded-pieces")
def sum_padded(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Summands that are similar pieces, each padded with zeros from its own place on, as their concatenation.

    The pieces fill the dimension, and no two of them overlap. No equation of the table says this: its indices are
    dimensions or digits of them, and a concatenation is over an index that is each piece's and a number.
    """
    groups: dict[Hashable, list[tuple[int, View, View]]] = {}
    for operand in operands:
        sized = View(operand.coefficient, operand.term, shape, operand.axes)
        dim = whole_dim_of_fresh(sized) if operand.term.operation is PAD else None
        if dim is None:
            continue
        start, step = operand.term.attributes
        (piece,) = pieces_of(sized, dim)
        if step == 1 and isinstance(start, int):
            key = (dim, piece.shape, piece.coefficient, similarity_key(pool, piece))
            groups.setdefault(key, []).append((start, operand, piece))
    stacked = _sum_of_stacks(pool, operands, shape)
    if stacked is not None:
        return stacked
    for (dim, *_), group in groups.items():  # type: ignore[misc]  # the keys above
        joined = _joined(pool, sorted(group, key=lambda part: part[0]), dim, shape[dim])
        if joined is not None:
            pool.lemma_trace.append(("sum-of-padded-pieces", repr(joined.term)))
            members = {id(operand) for _, operand, _ in group}
            return [*(operand for operand in operands if id(operand) not in members), joined]
    return None


def _joined(pool: TermPool, parts: Sequence[tuple[int, View, View]], dim: int, total: Size) -> View | None:
    end: Size = 0
    for start, _, piece in parts:
        if start != end:
            return None
        end = start + piece.shape[dim]
    pieces = [piece for _, _, piece in parts]
    if end != total or len(pieces) < 2:
        return None
    return join_similar(pool, pieces, dim)


def _sum_of_stacks(pool: TermPool, operands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
    """Stacks of pieces that are zero but for other numbers each, as the stack of what is not zero."""
    groups: dict[Hashable, list[tuple[View, list[View]]]] = {}
    for operand in operands:
        sized = View(operand.coefficient, operand.term, shape, operand.axes)
        dim = concatenated_dim(sized) if operand.term.operation is STACK else None
        if dim is not None:
            pieces = pieces_of(sized, dim)
            if any(piece.is_zero for piece in pieces):
                groups.setdefault((dim, len(pieces)), []).append((operand, pieces))
    for (dim, number), group in groups.items():  # type: ignore[misc]  # the keys above
        of_place = [[p[k] for _, p in group if not p[k].is_zero] for k in range(number)]
        if any(len(found) != 1 for found in of_place):
            continue
        joined = Builder(pool).concatenate([found for (found,) in of_place], dim)
        pool.lemma_trace.append(("sum-of-padded-pieces", repr(joined.term)))
        members = {id(operand) for operand, _ in group}
        return [*(operand for operand in operands if id(operand) not in members), joined]
    return None
