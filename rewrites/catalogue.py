"""Loads every family, so that the registry is complete."""

from __future__ import annotations

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
    elementwise,
    foreach,
    image_normalization,
    indexing,
    layout,
    loss,
    normalization,
    one_hot,
    one_hot_gradient,
    ordering,
    pooling,
    random,
    reduction,
    resampling,
    scatter,
    similar,
    statistics,
)

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
    elementwise,
    foreach,
    image_normalization,
    indexing,
    layout,
    loss,
    normalization,
    ordering,
    pooling,
    random,
    reduction,
    resampling,
    scatter,
    statistics,
)

CONTRACTION_LEMMAS = (
    counters.join_equal_counters,
    one_hot.open_masked_sum,
    one_hot.merge_shifted_one_hot,
    one_hot.drop_implied_mask,
    one_hot_gradient.sum_one_hot_row,
    one_hot_gradient.distribute_mask,
)

COMBINATION_LEMMAS = (similar.sum_similar,)
