"""Summands that are sums over neighbouring ranges of a dimension, or over neighbouring sliding windows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import CONTRACT, open_view
from verifycompile.ir.scalar import as_scalar
from verifycompile.ir.size import Size
from verifycompile.ir.term import Term, TermPool, View
from verifycompile.ir.window import RANGE
from verifycompile.rewrites.finders.finder import Proposal, SumFinder, whole_view
from verifycompile.rewrites.lemmas.ranges import NEIGHBOURING_RANGES, NEIGHBOURING_WINDOWS
from verifycompile.rewrites.lemmas.substitution import Factors, Substitution
from verifycompile.rewrites.parts.sliding import masked_dim, span_of
from verifycompile.rewrites.parts.sliding_matrix import LINE, WINDOWS, Matrix, axis_along, matrix_of

_DEPTH = 3
"""Of products among the factors of products."""


@dataclasses.dataclass(frozen=True)
class _Restricted:
    """A summand: the sum of ``factors`` over ``rest``, and over the dimension ``dim`` from ``start`` to ``stop``."""

    summand: View
    factors: Factors
    dim: int
    rest: tuple[int, ...]
    start: int
    stop: int


def _neighbouring_ranges(pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Iterator[Proposal]:
    """Sums of one value, those that are a factor of a summand included."""
    found = [item for summand in summands for item in _restrictions(pool, summand, shape)]
    for left, right in itertools.permutations(found, 2):
        if left.summand is right.summand or left.stop != right.start or left.dim != right.dim:
            continue
        ends = {name: as_scalar(n) for name, n in (("p", left.start), ("q", left.stop), ("s", right.stop))}
        given = Substitution({"a": left.factors}, ends, {"i": (left.dim,), "r": left.rest})
        yield Proposal(NEIGHBOURING_RANGES, given, (left.summand, right.summand))


def _restrictions(pool: TermPool, summand: View, shape: tuple[Size, ...]) -> list[_Restricted]:
    if not holds_range(pool, summand.term):
        return []
    sized = whole_view(summand.unscaled(), shape)
    number = () if summand.coefficient == 1 else (pool.constant(summand.coefficient, shape),)
    return [
        _Restricted(summand, (*number, *factors), dim, rest, *span)
        for factors, dim, rest, span in _opened(pool, sized, _DEPTH)
    ]


def holds_range(pool: TermPool, term: Term, depth: int = _DEPTH) -> bool:
    """Whether a product, or a product among its factors, has a range among its factors."""
    if term.operation is not CONTRACT:
        return False
    key = (term, depth)
    known = pool.ranges_held.get(key)
    if known is None:
        factors = [view.term for view in term.operands]
        known = any(factor.operation is RANGE for factor in factors) or (
            depth > 0 and any(holds_range(pool, factor, depth - 1) for factor in factors)
        )
        pool.ranges_held[key] = known
    return known


_Found = tuple[Factors, int, tuple[int, ...], tuple[int, int]]


def _opened(pool: TermPool, view: View, depth: int) -> Iterator[_Found]:
    """``(factors, dim, rest, span)``: the sum of the factors over the rest, and over that span of the dimension."""
    opened = open_view(view)
    for factor in opened.operands:
        others = tuple(v for v in opened.operands if v is not factor)
        if factor.term.operation is RANGE:
            dim = masked_dim(factor)
            if dim in opened.summed:
                yield others, dim, tuple(d for d in opened.summed if d != dim), _ends(factor)
        elif depth and holds_range(pool, factor.term, depth - 1):
            # The other factors and sums go into the sum of this factor.
            for factors, dim, rest, span in _opened(pool, factor, depth - 1):
                wide = (whole_view(v, factors[0].shape) for v in others if factors)
                yield (*wide, *factors), dim, (*opened.summed, *rest), span


def _ends(mask: View) -> tuple[int, int]:
    """The first position that a mask lets through, and the one behind the last."""
    first, last = span_of(mask)
    return first, last + 1


@dataclasses.dataclass(frozen=True)
class _Block:
    """A summand that sums over some windows, and over those positions on the line that ``line`` lets through."""

    summand: View
    matrix: View
    numbers: Matrix
    factors: Factors
    dims: tuple[int, int]
    rest: tuple[int, ...]
    windows: tuple[int, int]
    line: tuple[int, int]

    @property
    def read(self) -> tuple[int, int]:
        """The positions on the line that are read."""
        low, high = self.numbers.hits(LINE, (self.windows[0], self.windows[1] - 1))
        return max(self.line[0], low), min(self.line[1], high + 1)


def _neighbouring_windows(pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Iterator[Proposal]:
    """Sums over neighbouring windows, each over the positions on the line that its own windows reach alone."""
    if pool.piecewise is None:
        return
    found = [block for summand in summands for block in _blocks(pool, summand, shape)]
    for left, right in itertools.permutations(found, 2):
        if left.summand is right.summand or left.windows[1] != right.windows[0] or left.dims != right.dims:
            continue
        ends = (*left.windows, right.windows[1], *left.line, *right.line)
        ends = (*ends, min(left.read[0], right.read[0]), max(left.read[1], right.read[1]))
        numbers = dict(zip("pqsbcdefg", map(as_scalar, ends), strict=True))
        indices = {"w": left.dims[:1], "x": left.dims[1:], "r": left.rest}
        given = Substitution({"m": (left.matrix,), "a": left.factors}, numbers, indices)
        yield Proposal(NEIGHBOURING_WINDOWS, given, (left.summand, right.summand))


def _blocks(pool: TermPool, summand: View, shape: tuple[Size, ...]) -> Iterator[_Block]:
    term = summand.term
    if term.operation is not CONTRACT or not any(v.term.operation is RANGE for v in term.operands):
        return
    opened = open_view(whole_view(summand.unscaled(), shape))
    masks = {dim: v for v in opened.operands if (dim := masked_dim(v)) in opened.summed}
    number = () if summand.coefficient == 1 else (pool.constant(summand.coefficient, opened.shape),)
    for factor in opened.operands:
        matrix = matrix_of(factor)
        along = {axis_along(factor, d): d for d in opened.summed}
        if matrix is None or WINDOWS not in along or LINE not in along or along[WINDOWS] not in masks:
            continue
        dims = (along[WINDOWS], along[LINE])
        own = [masks[dim] for dim in dims if dim in masks]
        rest = tuple(v for v in opened.operands if v is not factor and not any(v is mask for mask in own))
        line = _ends(masks[dims[1]]) if dims[1] in masks else (0, matrix.line)
        others = tuple(d for d in opened.summed if d not in dims)
        yield _Block(summand, factor, matrix, (*number, *rest), dims, others, _ends(masks[dims[0]]), line)


neighbouring_ranges = SumFinder(_neighbouring_ranges)
neighbouring_windows = SumFinder(_neighbouring_windows)
