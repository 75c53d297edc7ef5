"""Loads every family, so that the registry is complete."""

from __future__ import annotations

import functools

from verifycompile.rewrites import (
    activation,
    advanced_indexing,
    arithmetic,
    attention,
    collective,
    complex_numbers,
    contraction,
    convolution,
    counters,
    creation,
    diagonals,
    distances,
    elementwise,
    embedding_bags,
    exponents,
    factorizations,
    foreach,
    fourier,
    grouped,
    image_normalization,
    indexing,
    integers,
    layout,
    log_weights,
    lookup,
    loss,
    margin_losses,
    masks,
    matrices,
    moments,
    normalization,
    one_hot,
    one_hot_gradient,
    ordering,
    padded_pieces,
    pooling,
    random,
    ranges,
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
    sliding,
    sorted_rows,
    special_functions,
    statistics,
    strided,
    writing,
)
from verifycompile.rewrites.laws import LAWS
from verifycompile.rewrites.lemma import LINEAR_ALGEBRA
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

CONTRACTION_LEMMAS = (
    counters.join_equal_counters,
    counters.sum_of_counted_digits,
    counters.lookups_at_one_place,
    lookup.merge_equal_masks,
    exponents.merge_exponentials,
    exponents.merge_powers,
    exponents.distribute_exponential,
    exponents.distribute_weights,
    exponents.sum_inside_of_weights,
    one_hot.open_masked_sum,
    one_hot.merge_shifted_one_hot,
    one_hot.drop_implied_mask,
    one_hot.drop_known_mask,
    one_hot_gradient.sum_one_hot_row,
    one_hot_gradient.distribute_mask,
    lookup.lookup_under_its_indicator,
    lookup.masks_join_lookup,
    lookup.distribute_lookup,
    masks.apply_mask_once,
    moments.split_constant_part,
)

COMBINATION_LEMMAS = (
    log_weights.rest_of_weight,
    similar.sum_similar,
    ranges.merge_ranges,
    padded_pieces.sum_padded,
    sliding.merge_blocks,
)


def code_of(name: str) -> str:
    """The code of a lemma or step that a proof names."""
    return _codes().get(name, name)


@functools.cache
def _codes() -> dict[str, str]:
    return {
        lemma.name: lemma.code for lemma in (*CONTRACTION_LEMMAS, *COMBINATION_LEMMAS, *STEPS, *LAWS, *LINEAR_ALGEBRA)
    }
