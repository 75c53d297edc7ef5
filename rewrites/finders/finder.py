"""Finders propose, the table disposes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from verifycompile.ir.size import Size
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.lemmas.dispose import dispose
from verifycompile.rewrites.lemmas.lemma import Lemma
from verifycompile.rewrites.lemmas.read import factors_of
from verifycompile.rewrites.lemmas.substitution import Factors, InProduct, InSum, Position, Substitution


@dataclasses.dataclass(frozen=True)
class Proposal:
    """An instance of a lemma that may be there: ``matched`` are the factors or summands of its left side."""

    lemma: Lemma
    substitution: Substitution
    matched: Sequence[View]


Disposed = tuple[Proposal, Sequence[View]]
"""A proposal that was an instance, and what stands at its position by the lemma."""


@dataclasses.dataclass(frozen=True)
class ProductFinder:
    """Proposes what to rewrite among the factors of a product, which is summed over dimensions from ``free`` on.

    ``among_masks``: it finds nothing in a product of which no factor is a mask, and is not asked there.
    """

    find: Callable[[TermPool, Sequence[View], int], Iterator[Proposal]]
    among_masks: bool = False

    def __call__(self, pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
        found = self.instance(pool, factors, free)
        return None if found is None else found[1]

    def instance(self, pool: TermPool, factors: Sequence[View], free: int) -> Disposed | None:
        """The first proposal that is an instance of its lemma, and makes another product."""
        proposals = self.find(pool, factors, free)
        while (found := _first(pool, proposals, lambda matched: InProduct(factors, free, matched))) is not None:
            if not _is_same_product(found[1], factors):
                return found
        return None


@dataclasses.dataclass(frozen=True)
class SumFinder:
    """Proposes what to rewrite among the summands of a sum."""

    find: Callable[[TermPool, Sequence[View], tuple[Size, ...]], Iterator[Proposal]]

    def __call__(self, pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Sequence[View] | None:
        found = self.instance(pool, summands, shape)
        return None if found is None else found[1]

    def instance(self, pool: TermPool, summands: Sequence[View], shape: tuple[Size, ...]) -> Disposed | None:
        """The first proposal that is an instance of its lemma."""
        return _first(pool, self.find(pool, summands, shape), lambda matched: InSum(summands, shape, matched))


def _is_same_product(left: Sequence[View], right: Sequence[View]) -> bool:
    """Whether two products have the same factors, products among them opened: nothing comes of such a step."""
    (number, opened), (other, given) = factors_of(left), factors_of(right)
    return number == other and Counter((v.term, v.axes) for v in opened) == Counter((v.term, v.axes) for v in given)


def _first(
    pool: TermPool, proposals: Iterator[Proposal], position: Callable[[Sequence[View]], Position]
) -> Disposed | None:
    for proposal in proposals:
        found = dispose(pool, proposal.lemma, proposal.substitution, position(proposal.matched))
        if found is not None:
            return proposal, found
    return None


def factors_without(pool: TermPool, view: View, factor: View) -> Factors | None:
    """The other factors of a product, its number among them; None where it does not have the factor."""
    coefficient, plain = factors_of([view])
    place = next((k for k, v in enumerate(plain) if (v.term, v.axes) == (factor.term, factor.axes)), None)
    if place is None:
        return None
    del plain[place]
    return tuple(plain) if coefficient == 1 else (*plain, pool.constant(coefficient, view.shape))


def whole_view(view: View, shape: tuple[Size, ...]) -> View:
    """The view over a wider space, whose further dimensions it does not read."""
    return View(view.coefficient, view.term, shape, view.axes)
