"""Loads every family, so that the registry is complete."""

from __future__ import annotations

import functools

from verifycompile.ir.term import CombinationRule, ContractionRule
from verifycompile.rewrites import (
    activation,
    advanced_indexing,
    arithmetic,
    attention,
    collective,
    complex_numbers,
    contraction,
    convolution,
    creation,
    diagonals,
    distances,
    elementwise,
    embedding_bags,
    factorizations,
    foreach,
    fourier,
    grouped,
    image_normalization,
    indexing,
    integers,
    layout,
    log_weights,
    loss,
    margin_losses,
    matrices,
    normalization,
    ordering,
    padded_pieces,
    pooling,
    random,
    reduction,
    resampling,
    row_algebra,
    row_choice,
    row_layout,
    row_parts,
    row_writes,
    sampling,
    scatter,
    searching,
    similar,
    sorted_rows,
    special_functions,
    statistics,
    strided,
    writing,
)
from verifycompile.rewrites.finders import (
    counters,
    distribution,
    exponents,
    lookups,
    masks,
    one_hot,
    one_hot_gradient,
    ranges,
)
from verifycompile.rewrites.laws import LAWS
from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.rewrites.steps import STEPS

FAMILIES = (
    activation,
    advanced_indexing,
    arithmetic,
    attention,
    collective,
    complex_numbers,
    contraction,
    convolution,
    creation,
    diagonals,
    distances,
    elementwise,
    embedding_bags,
    factorizations,
    foreach,
    fourier,
    grouped,
    image_normalization,
    indexing,
    integers,
    layout,
    loss,
    margin_losses,
    matrices,
    normalization,
    ordering,
    pooling,
    random,
    reduction,
    resampling,
    sampling,
    scatter,
    searching,
    row_algebra,
    row_choice,
    row_layout,
    row_parts,
    row_writes,
    sorted_rows,
    special_functions,
    statistics,
    strided,
    writing,
)

CONTRACTION_LEMMAS: tuple[ContractionRule, ...] = (
    counters.equal_counters,
    counters.compared_digits,
    counters.look_ups_again,
    masks.equal_masks,
    exponents.equal_exponents,
    exponents.equal_bases,
    distribution.exponentials_that_meet,
    distribution.weights_of_sums,
    exponents.sums_inside_of_weights,
    one_hot.masked_sums,
    one_hot.shifted_one_hots,
    one_hot.implied_masks,
    one_hot.known_masks,
    one_hot_gradient.one_hot_rows,
    distribution.masks_of_their_subject,
    lookups.look_ups_inside,
    lookups.masks_of_look_ups,
    lookups.look_ups_of_sums,
    masks.masks_of_masked,
    distribution.sums_about_a_constant,
)
"""What is tried on the factors of a product, in this order: what makes terms plainer before what makes more of them."""

MATCHING_LEMMAS = (similar.sum_similar, padded_pieces.sum_padded)
"""Lemmas that are functions still."""

COMBINATION_LEMMAS: tuple[CombinationRule, ...] = (
    log_weights.rests_of_shares,
    similar.sum_similar,
    ranges.neighbouring_ranges,
    padded_pieces.sum_padded,
    ranges.neighbouring_windows,
)


def code_of(name: str) -> str:
    """The code of a lemma or step that a proof names."""
    return _codes().get(name, name)


@functools.cache
def _codes() -> dict[str, str]:
    return {lemma.name: lemma.code for lemma in (*TABLE, *FUNCTION_LAWS, *MATCHING_LEMMAS, *STEPS, *LAWS)}
