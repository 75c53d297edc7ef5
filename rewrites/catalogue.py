"""The lemmas that the normal form tries, in order: finders that propose, and lemmas that are functions still."""

from __future__ import annotations

from verifycompile.ir.term import CombinationRule, ContractionRule
from verifycompile.rewrites import padded_pieces, places, similar
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

CONTRACTION_LEMMAS: tuple[ContractionRule, ...] = (
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
    masks.masks_of_masked,
    masks.beside_masks,
    distribution.sums_about_a_constant,
)
"""What is tried on the factors of a product, in this order: what makes terms plainer before what makes more of them."""

COMBINATION_LEMMAS: tuple[CombinationRule, ...] = (
    shares.rests_of_shares,
    similar.sum_similar,
    ranges.neighbouring_ranges,
    padded_pieces.sum_padded,
    ranges.neighbouring_windows,
    prefixes.prefixes,
    places.places_in_parts,
)
