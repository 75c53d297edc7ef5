"""Equality of values part by part: what several ranks assembled is compared with each part of the spec's value.

Where ranks run different programs, as those of a causal ring do that skip blocks they do not see, their parts are no
batch of one computation. The spec's value at the part's place is another term, though: a mask is decided for whole
blocks of the index that is summed, whose sum ends with the last block that is seen. Both sides are written anew with
the place of the part in all of their operands, and every sum under an inequality by blocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, contract, open_view
from verifycompile.ir.budget import BudgetExceededError
from verifycompile.ir.build import ShapeError
from verifycompile.ir.exponential import LOGARITHM, POWER, is_positive
from verifycompile.ir.indicator import is_indicator
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.inequality_blocks import block_of
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, opened_stack, pieces_of
from verifycompile.ir.relabel import UnalignedError, narrow, substitute
from verifycompile.ir.scalar import ONE, NonFiniteScalarError
from verifycompile.ir.sign import is_positive_sum
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, Digit, Term, TermPool, View, terms_of
from verifycompile.ir.window import WINDOW, window_at
from verifycompile.refinement.placement import same_value
from verifycompile.refinement.ring import equal_in_ring
from verifycompile.rewrites.parts.chosen import applied
from verifycompile.rewrites.parts.sliding import masked_dim, span_of
from verifycompile.rewrites.parts.stretches import along_pieces, whole
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.walks import reached

_MOST_BLOCKS = 64
_MOST_VIEWS = 20_000


class _TooLargeError(Exception):
    """More views to write anew than anyone wants to wait for."""


def same_part_by_part(pool: TermPool, spec: View, found: View) -> bool:
    """Whether a concatenation has the spec's value in each part; False where that is not found."""
    dim = concatenated_dim(found)
    if dim is None or spec.shape != found.shape:
        return False
    # Zero times what is no number is none: blocks that a mask leaves out may be dropped of finite values alone.
    if not _is_defined(spec) or not _is_defined(found):
        return False
    try:
        same = all(
            any(_same(_Places(pool, one_by_one), left, right) for one_by_one in (True, False))
            for left, right in _parts(spec, found, dim)
        )
    except (UnalignedError, ShapeError, NonFiniteScalarError, UnsupportedError, BudgetExceededError, _TooLargeError):
        return False
    if same:
        pool.lemma_trace.append(("part-by-part", repr(found.term)))
    return same


def _parts(spec: View, found: View, dim: int) -> list[tuple[View, View]]:
    """The parts of both along ``dim``, as fine as the pieces of either, those of ``found`` opened again."""
    pieces = pieces_of(found, dim)
    own = pieces_of(spec, dim) if concatenated_dim(spec) == dim else []
    own = own if all(isinstance(view.shape[dim], int) for view in (*own, *pieces)) else []
    ends = [list(itertools.accumulate(view.shape[dim] for view in views)) for views in (pieces, own)]
    stops = sorted({*ends[0], *ends[1]}) if own else ends[0]
    pairs: list[tuple[View, View]] = []
    for start, stop in zip([0, *stops], stops, strict=False):
        left, right = (_part(views, dim, start, stop) for views in (own or [spec], pieces))
        inner = concatenated_dim(right)
        pairs += [(left, right)] if inner is None else _parts(left, right, inner)
    return pairs


def _part(views: Sequence[View], dim: int, start: Size, stop: Size) -> View:
    """From ``start`` to ``stop`` of the concatenation of ``views``, which lies within one of them."""
    first: Size = 0
    for view in views:
        after = first + view.shape[dim]
        if (first, after) == (start, stop):
            return view
        known = all(isinstance(place, int) for place in (first, after, start, stop))
        if len(views) == 1 or (known and stop <= after):
            return narrow(view, dim, start - first, stop - start)
        first = after
    raise UnalignedError("a part of several pieces")


def _same(places: _Places, left: View, right: View) -> bool:
    first, second = places.view(left), places.view(right)
    return same_value(first, second) or equal_in_ring(places.pool, first, second)


def _is_defined(view: View) -> bool:
    """Whether no infinity, and no quotient or logarithm of a sum that masks may leave empty, is in a value."""
    return not any(map(_may_be_undefined, reached([view.term], terms_of)))


def _may_be_undefined(term: Term) -> bool:
    operation = term.operation
    if not term.operands:
        return not operation.is_finite
    divides = operation is POWER and not (isinstance(term.attributes[0], Fraction) and term.attributes[0] > 0)
    return (divides or operation is LOGARITHM) and _may_vanish(term.operands[0])


def _may_vanish(view: View) -> bool:
    """Whether masks are all that is known of a sum that is not positive by construction."""
    if is_positive(view.unscaled()) or is_positive_sum(view):
        return False
    summands = view.term.operands if view.term.operation is COMBINE else (view,)
    return all(_is_masked(summand) for summand in summands)


def _is_masked(view: View) -> bool:
    factors = view.term.operands if view.term.operation is CONTRACT else (view,)
    return any(is_indicator(factor.unscaled()) for factor in factors)


class _Places:
    """Writes values anew so that constant positions reach all operands, and sums under inequalities go by blocks.

    ``one_by_one``: blocks are added one after the other, as in a loop over ranks, so that the same blocks are summed.
    Else all are added at once, as a sum over the parts that ranks gathered.
    """

    def __init__(self, pool: TermPool, one_by_one: bool) -> None:
        self.pool, self.one_by_one = pool, one_by_one
        self._known: dict[View, View] = {}

    def view(self, view: View) -> View:
        known = self._known.get(view)
        if known is None:
            if len(self._known) > _MOST_VIEWS:
                raise _TooLargeError
            known = self._known[view] = self._written(_opened(view))
        return known

    def _written(self, view: View) -> View:
        term = view.term
        if term.operation is IOTA:
            return combine(self.pool, [view])
        if term.operation is WINDOW:
            found = _by_digits(view)
            return found if found.term.operation is WINDOW else self.view(found)
        if not term.operands or term.fresh:
            return view
        opened = open_view(view)
        operands = [self.view(dataclasses.replace(v, shape=opened.shape)) for v in opened.operands]
        if term.operation is CONTRACT:
            result = self._sum(operands, opened.shape, view.rank)
            return dataclasses.replace(result, shape=view.shape).scaled(view.coefficient)
        return applied(self.pool, view, opened, operands)

    def _sum(self, factors: list[View], shape: tuple[Size, ...], free: int) -> View:
        """The sum of a product over the dimensions from ``free`` on, by blocks where a mask is decided for some."""
        for mask in factors:
            line = masked_dim(mask)
            if line >= free and len(set(span_of(mask))) == 1:
                chosen = [self.view(narrow(f, line, span_of(mask)[0], 1)) for f in factors if f is not mask]
                return self._sum(chosen, (*shape[:line], 1, *shape[line + 1 :]), free)
            for dim in range(free, len(shape)) if mask.term.operation is AT_MOST else ():
                blocks = self._blocks(mask, dim, shape)
                if blocks is None:
                    continue
                self.pool.lemma_trace.append(("sum-by-blocks", repr(mask.term)))
                parts: list[View] = []
                for digits, length, decided in blocks:
                    inner = (*shape[:dim], length, *shape[dim + 1 :])
                    if decided.is_zero:
                        continue
                    rest = [self.view(_at(f, dim, digits, inner)) for f in factors if f is not mask]
                    parts.append(self._sum([*rest, decided], inner, free))
                total = self.pool.zero(shape[:free])
                if not self.one_by_one:
                    return combine(self.pool, [total, *parts])
                for part in parts:
                    total = combine(self.pool, [total, part])
                return total
        labels = tuple(range(len(shape)))
        output = labels[:free]
        # Where the mask was the only factor, ones are summed.
        factors = factors or [self.pool.constant(ONE, shape)]
        return contract(self.pool, factors, tuple(labels for _ in factors), output, frozenset(labels[free:]))

    def _blocks(
        self, mask: View, dim: int, shape: tuple[Size, ...]
    ) -> list[tuple[tuple[Digit, Digit], int, View]] | None:
        """Digits and length of each block with the mask in it; None where the mask is decided in no block.

        Where pieces are compared, as positions are that lie in several stretches, each piece is a block.
        """
        size, is_numbered = shape[dim], _numbers_pieces(mask, dim)
        length = 1 if is_numbered else block_of(mask, dim)
        if length is None or not isinstance(size, int) or size // length > _MOST_BLOCKS:
            return None
        found: list[tuple[tuple[Digit, Digit], int, View]] = []
        for number in range(size // length):
            digits: tuple[Digit, Digit] = (CONSTANT, number, size // length), (dim, 1, length)
            inner = (*shape[:dim], length, *shape[dim + 1 :])
            found.append((digits, length, self.view(_at(mask, dim, digits, inner))))
        return found if is_numbered or any(mask.term is self.pool.unit for _, _, mask in found) else None


def _numbers_pieces(mask: View, dim: int) -> bool:
    """Whether ``dim`` numbers the pieces of a stack that is compared."""
    stacks = (v for v in open_view(mask).operands if v.term.operation is STACK)
    return any(stack.axes[stack.term.fresh[0]] == ((dim, 1, mask.shape[dim]),) for stack in stacks)


def _opened(view: View) -> View:
    """The piece itself where the view is within one piece of a stack, or reads a part of one of a concatenation."""
    view = opened_stack(view)
    digits = view.axes[view.term.fresh[0]] if view.term.operation is CONCATENATE else ()
    if not digits or digits[0][0] != CONSTANT:
        return view
    (_, number, count), *inner = digits
    length = product(size for _, _, size in inner)
    pieces = pieces_of(along_pieces(view, product((count, length))), view.rank)
    if not all(isinstance(size, int) for size in (number, length, *(piece.shape[-1] for piece in pieces))):
        return view
    start = whole(number) * whole(length)
    for piece in pieces:
        size = whole(piece.shape[-1])
        if start < size:
            part, rest = divmod(start, whole(length))
            if rest or size % whole(length):
                return view  # it ends elsewhere than a part of the piece
            place: dict[int, Sequence[Digit]] = {dim: [(dim, 1, extent)] for dim, extent in enumerate(view.shape)}
            chosen: list[Digit] = [] if size == length else [(CONSTANT, part, size // whole(length))]
            return _opened(substitute(piece, {**place, view.rank: [*chosen, *inner]}, view.shape))
        start -= size
    return view


def _by_digits(view: View) -> View:
    """A window as digits, where they spell it."""
    for dim in range(view.rank):
        part = window_at(view, dim)
        if part is not None:
            with contextlib.suppress(UnalignedError):
                return _by_digits(narrow(part.source, dim, part.start, view.shape[dim]))
    return view


def _at(view: View, dim: int, digits: tuple[Digit, Digit], shape: tuple[Size, ...]) -> View:
    """The view with ``digits`` for ``dim``, over dimensions of the sizes in ``shape``."""
    replacement: dict[int, Sequence[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(view.shape)}
    replacement[dim] = digits
    return substitute(view, replacement, shape)
