"""The lemmas that the normal form tries, in order: finders that propose, and lemmas that are functions still."""

from __future__ import annotations

from collections.abc import Sequence

from verifycompile.ir.term import CombinationRule, TermPool, View
from verifycompile.rewrites.finders import (
    counters,
    distribution,
    exponents,
    lookups,
    masks,
    one_hot,
    one_hot_gradient,
    prefixes,
    ranges,
    shares,
)
from verifycompile.rewrites.finders.finder import ProductFinder
from verifycompile.rewrites.parts import padded_pieces, places, similar

CONTRACTION_LEMMAS: tuple[ProductFinder, ...] = (
    counters.equal_counters,
    counters.places_looked_up,
    counters.compared_digits,
    counters.look_ups_again,
    masks.equal_masks,
    masks.decided_masks,
    exponents.equal_exponents,
    exponents.equal_bases,
    distribution.exponentials_that_meet,
    distribution.weights_of_sums,
    exponents.sums_inside_of_weights,
    exponents.sums_between_weights,
    one_hot.masked_sums,
    one_hot.shifted_one_hots,
    one_hot.implied_masks,
    one_hot.masks_outside,
    one_hot.known_masks,
    one_hot_gradient.one_hot_rows,
    distribution.masks_of_their_subject,
    lookups.look_ups_inside,
    lookups.masks_of_look_ups,
    lookups.look_ups_of_sums,
    lookups.functions_looked_up,
    masks.masks_of_masked,
    masks.beside_masks,
    distribution.sums_about_a_constant,
)
"""What is tried on the factors of a product, in this order: what makes terms plainer before what makes more of them."""

COMBINATION_LEMMAS: tuple[CombinationRule, ...] = (
    shares.rests_of_shares,
    masks.masks_and_rests,
    similar.sum_similar,
    ranges.neighbouring_ranges,
    padded_pieces.sum_padded,
    ranges.neighbouring_windows,
    prefixes.prefixes,
    places.places_in_parts,
)

_WITHOUT_MASKS = tuple(finder for finder in CONTRACTION_LEMMAS if not finder.among_masks)


def lemmas_of_product(factors: Sequence[View]) -> tuple[ProductFinder, ...]:
    """What is tried on these factors: most products have no mask among them."""
    masked = any(factor.term.operation.indicator for factor in factors)
    return CONTRACTION_LEMMAS if masked else _WITHOUT_MASKS


def product_lemma(pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
    """The first lemma about the factors of a product that applies, as a rule of a pool."""
    results = (find(pool, factors, free) for find in lemmas_of_product(factors))
    return next((result for result in results if result is not None), None)
