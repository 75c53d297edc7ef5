"""Sums under triangular masks, such as cumulative sums, and those of their parts: one sum under one mask.

The sum up to a position is that within its own chunk plus the sums of the chunks before. Which masks may be one is
guessed from the counters that they compare; that they are is proved at every match.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from verifycompile.ir.algebra import COMBINE, CONTRACT, IOTA, combine, elementwise, iota, open_view
from verifycompile.ir.indicator import equal, less_equal, negate
from verifycompile.ir.inequality import AT_MOST
from verifycompile.ir.relabel import UnalignedError, merge_digits, substitute
from verifycompile.ir.scalar import ONE, as_scalar, multiply
from verifycompile.ir.size import Size, product
from verifycompile.ir.term import CONSTANT, Axis, Digit, Term, TermPool, View
from verifycompile.rewrites.finders.finder import Proposal, SumFinder, whole_view
from verifycompile.rewrites.lemmas.products import DISTRIBUTE_IN_SUM
from verifycompile.rewrites.lemmas.ranges import MASKS_THAT_EXCLUDE, REST_OF_MASK
from verifycompile.rewrites.lemmas.read import factors_of
from verifycompile.rewrites.lemmas.substitution import Substitution


@dataclasses.dataclass(frozen=True)
class _Bounded:
    """A summand that sums over the positions ``own`` up to or from ``other``, as ``mask`` says, with ``rest``.

    ``turned``: from the other on. ``constant``: by how much the bound is moved.
    """

    summand: View
    shape: tuple[Size, ...]
    summed: tuple[int, ...]
    mask: View
    rest: tuple[View, ...]
    own: View
    other: View
    turned: bool
    constant: int

    @property
    def counts(self) -> bool:
        """Whether all positions add the same: how many chunks there are is how many positions, by their size."""
        return not any(view.uses(dim) for view in self.rest for dim in _dims(self.own))


@dataclasses.dataclass(frozen=True)
class _Summed:
    """A product that is summed over the dimensions ``summed`` of its ``shape``."""

    shape: tuple[Size, ...]
    summed: tuple[int, ...]
    factors: tuple[View, ...]


def _sums(summand: View, shape: tuple[Size, ...]) -> Iterator[_Summed]:
    """A product as a sum of products: what does not depend on what a factor sums is taken into that factor's sum."""
    plain = whole_view(summand.unscaled(), shape)
    if plain.term.operation is not CONTRACT:
        return
    opened = open_view(plain)
    if opened.summed:
        yield _Summed(opened.shape, opened.summed, opened.operands)
        return
    coefficient, factors = factors_of(opened.operands)
    for factor in factors if coefficient == 1 else ():
        if factor.term.operation is CONTRACT and factor.term.summed:
            inner = open_view(factor)
            rest = (whole_view(v, inner.shape) for v in factors if v is not factor)
            yield _Summed(inner.shape, inner.summed, (*inner.operands, *rest))


def _bounded(summand: View, shape: tuple[Size, ...]) -> Iterator[_Bounded]:
    for total in _sums(summand, shape):
        for mask in total.factors:
            if mask.term.operation is not AT_MOST:
                continue
            (constant,) = mask.term.attributes
            assert isinstance(constant, int)
            operands = open_view(mask).operands
            rest = tuple(v for v in total.factors if v is not mask)
            for turned, (own, other) in enumerate((operands, operands[::-1])):
                if _counts(own, total.shape, set(total.summed)) and _counts(other, shape, set(range(len(shape)))):
                    yield _Bounded(summand, total.shape, total.summed, mask, rest, own, other, bool(turned), constant)


def _counts(view: View, shape: Sequence[Size], among: set[int]) -> bool:
    """Whether a view is a number that whole dimensions among these spell."""
    if view.term.operation is not IOTA or view.coefficient != 1:
        return False
    dims = [dim for dim, _, _ in view.axes[0]]
    whole = all(dim in among and divisor == 1 and size == shape[dim] for dim, divisor, size in view.axes[0])
    return whole and len(set(dims)) == len(dims)


def _prefixes(pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Iterator[Proposal]:
    found = [bounded for summand in summands for bounded in _bounded(summand, shape)]
    for whole in found:
        for part in summands:
            if part is whole.summand:
                continue
            try:
                yield from _together(pool, whole, part, shape, found)
            except UnalignedError:
                continue
    yield from _distributed(pool, found)


def _distributed(pool: TermPool, found: Sequence[_Bounded]) -> Iterator[Proposal]:
    """Sums over chunks of a sum, beside sums within chunks: those of the summands, with which these may be one."""
    for whole in found:
        if any(_dims(part.other) != _dims(whole.other) for part in found):
            for total in whole.rest:
                if total.term.operation is COMBINE:
                    others = (whole.mask, *(v for v in whole.rest if v is not total))
                    scale = multiply(total.coefficient, whole.summand.coefficient)
                    first, *more = (v.scaled(scale) for v in open_view(total.unscaled()).operands)
                    given = {"f": others, "a": (first,), "b": (combine(pool, more),)}
                    proposal = Substitution(given, indices={"l": whole.summed})
                    yield Proposal(DISTRIBUTE_IN_SUM, proposal, (whole.summand,))


def _together(
    pool: TermPool, whole: _Bounded, part: View, shape: tuple[Size, ...], found: Sequence[_Bounded]
) -> Iterator[Proposal]:
    """A sum over other chunks, and what may be that of the own one."""
    if (part.coefficient == whole.summand.coefficient or whole.counts) and whole.constant == -1:
        yield from _joined(pool, whole, part, None, shape)
        for within in found:
            apart = within.summand is part and not _dims(within.other) & _dims(whole.other)
            if apart and within.turned == whole.turned:
                yield from _joined(pool, whole, part, within, shape)
    if part.coefficient == -whole.summand.coefficient:
        if whole.constant == 0:
            yield from _without_own(pool, whole, part, None, shape)
            for within in found:
                apart = within.summand is part and not _dims(within.other) & _dims(whole.other)
                if apart and within.turned != whole.turned:
                    yield from _without_own(pool, whole, part, within, shape)
        number = () if part.coefficient == 1 else (pool.constant(part.coefficient, whole.shape),)
        given = {"m": (), "n": (whole.mask,), "c": (negate(pool, whole.mask),), "a": (*number, *whole.rest)}
        yield Proposal(REST_OF_MASK, Substitution(given, indices={"l": whole.summed}), (part, whole.summand))


def _joined(
    pool: TermPool, whole: _Bounded, part: View, within: _Bounded | None, shape: tuple[Size, ...]
) -> Iterator[Proposal]:
    space = _Space(pool, whole, part, within, shape)
    if not space.fits:
        return
    chosen = (*space.own_mask, equal(pool, space.chunk, space.wide(whole.other)))
    rest = space.bound(0) if within is None else space.joined(within.constant)
    given = {"m": chosen, "n": (space.bound(-1),), "c": (rest,), "a": space.values}
    yield Proposal(MASKS_THAT_EXCLUDE, Substitution(given, indices={"l": space.summed}), (part, whole.summand))


def _without_own(
    pool: TermPool, whole: _Bounded, part: View, within: _Bounded | None, shape: tuple[Size, ...]
) -> Iterator[Proposal]:
    """A sum over chunks with the own one, without that or without a part of it."""
    space = _Space(pool, whole, part, within, shape, factor=-1)
    if not space.fits:
        return
    own = (*space.own_mask, equal(pool, space.chunk, space.wide(whole.other)))
    rest = space.bound(-1) if within is None else space.joined(-within.constant - 1)
    given = {"m": (space.bound(0),), "n": own, "c": (rest,), "a": space.values}
    yield Proposal(REST_OF_MASK, Substitution(given, indices={"l": space.summed}), (whole.summand, part))


class _Space:
    """Everything over the dimensions of a part, those that it sums, and one more, which numbers the chunks.

    ``values``: what the part sums, of any chunk instead of its own. Factors that do not depend on the chunk where it is
    summed, as the query of an attention, stay as they are.
    """

    def __init__(
        self, pool: TermPool, whole: _Bounded, part: View, within: _Bounded | None, shape: tuple[Size, ...],
        factor: int = 1,
    ) -> None:  # fmt: skip
        self.pool, self.whole, self.within = pool, whole, within
        self.rank = len(shape)
        plain = whole_view(part.unscaled(), shape)
        if within is not None:
            inner, summed, factors = within.shape, within.summed, within.rest
        elif part.term.operation is CONTRACT:
            opened = open_view(plain)
            inner, summed, factors = opened.shape, opened.summed, opened.operands
        else:
            inner, summed, factors = shape, (), (plain,)
        count = whole.own.term.index_sizes[0]
        self.shape = (*inner, count)
        dim = len(inner)
        self.summed = (*summed, dim)
        self.chunk = self._counter(((dim, 1, count),))
        replaced: dict[int, Sequence[Digit]] = {d: [(d, 1, size)] for d, size in enumerate(inner)}
        weight: Size = 1
        for own, _, size in reversed(whole.other.axes[0]):
            replaced[own] = [(dim, weight, size)]
            weight = product((weight, size))
        coefficient = part.coefficient if factor == 1 else -part.coefficient
        number = () if coefficient == 1 else (pool.constant(coefficient, self.shape),)
        elsewhere = [self._placed(v) for v in whole.rest if any(map(v.uses, _dims(whole.own)))]
        kept = {self._placed(v) for v in whole.rest}.difference(elsewhere)
        self.values = (
            *number,
            *(self.wide(v) if self._placed(v) in kept else substitute(v, replaced, self.shape) for v in factors),
        )
        self.fits = any(view.uses(dim) for view in self.values) != whole.counts and weight == count

    def _placed(self, view: View) -> tuple[Term, tuple[Axis, ...]]:
        """A term and what it reads of the dimensions that are not summed, whose numbers alone both sums share."""
        return view.term, tuple(tuple(digit for digit in axis if digit[0] < self.rank) for axis in view.axes)

    @property
    def own_mask(self) -> list[View]:
        return [] if self.within is None else [self.wide(self.within.mask)]

    def wide(self, view: View) -> View:
        return whole_view(view, self.shape)

    def _counter(self, digits: Axis) -> View:
        counter = iota(self.pool, product(size for _, _, size in digits))
        return View(ONE, counter.term, self.shape, (merge_digits(digits),))

    def bound(self, constant: int) -> View:
        """The chunks before this one, or behind it; from 0 on with this one."""
        sides = self.chunk, self.wide(self.whole.other)
        return elementwise(self.pool, AT_MOST, (constant,), sides[::-1] if self.whole.turned else sides)

    def joined(self, constant: int) -> View:
        """The mask of both: of the number of the chunk, and the position in it, moved by the constant."""
        assert self.within is not None
        chunks, places = (self.chunk, self.whole.other), (self.within.own, self.within.other)
        if places[0].term is not places[1].term:
            raise UnalignedError("chunks of different sizes")
        own, other = (
            self._counter((*chunk.axes[0], *place.axes[0])) for chunk, place in zip(chunks, places, strict=True)
        )
        left, right = (other, own) if self.whole.turned else (own, other)
        moved = self.pool.constant(as_scalar(constant), self.shape)
        return less_equal(self.pool, left, combine(self.pool, [right, moved]))


def _dims(view: View) -> set[int]:
    return {dim for axis in view.axes for dim, _, _ in axis if dim != CONSTANT}


prefixes = SumFinder(_prefixes)
