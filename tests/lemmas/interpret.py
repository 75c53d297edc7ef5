"""Interprets the patterns of lemmas on arrays over two named indices: numpy floats, or numpy objects of z3 reals.

A value is an array of shape (i, j). A sum over an index keeps that axis with the sum repeated, so that every value
has the same shape; a value is independent of an index when it is constant along it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern

AXES = {"i": 0, "j": 1}
INDICES = frozenset(AXES)
NUMBERS = frozenset({"p", "q"})


def variables(pattern: Pattern) -> set[str]:
    if isinstance(pattern, str):
        return {pattern}
    return set().union(*(variables(p) for p in pattern[1:]))


def evaluate(pattern: Pattern, values: Mapping[str, Any]) -> Any:
    if isinstance(pattern, str):
        return values[pattern]
    operator, *arguments = pattern
    if operator == "one":
        return np.ones((), dtype=int)
    if operator == "sum":
        axis = AXES[str(arguments[0])]
        body = evaluate(arguments[1], values)
        total = body.sum(axis=axis, keepdims=True)
        return np.broadcast_to(total, body.shape)
    # As arrays: a z3 number on the left would not broadcast over an array on the right.
    left, right = (np.asarray(evaluate(a, values)) for a in arguments)
    return np.add(left, right) if operator in ("add", "plus") else np.multiply(left, right)


def value_names(lemma: Lemma) -> list[str]:
    return sorted((variables(lemma.left) | variables(lemma.right)) - INDICES - NUMBERS)


def independent_axes(lemma: Lemma, name: str) -> list[int]:
    return [AXES[index] for kind, value, index in lemma.guards if kind == "independent" and value == name]
