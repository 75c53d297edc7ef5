"""The codes of all that a proof can name: lemmas, laws, and steps of the normal form."""

from __future__ import annotations

import functools

from verifycompile.rewrites.lemmas.functions import FUNCTION_LAWS
from verifycompile.rewrites.lemmas.normal_form import NORMAL_FORM
from verifycompile.rewrites.lemmas.table import TABLE
from verifycompile.rewrites.parts import padded_pieces, places, similar
from verifycompile.rewrites.steps import STEPS

MATCHING_LEMMAS = (similar.sum_similar, padded_pieces.sum_padded, places.places_in_parts)
"""Lemmas that are functions still."""


def code_of(name: str) -> str:
    """The code of a lemma or step that a proof names."""
    return _codes().get(name, name)


@functools.cache
def _codes() -> dict[str, str]:
    return {lemma.name: lemma.code for lemma in (*TABLE, *FUNCTION_LAWS, *MATCHING_LEMMAS, *STEPS, *NORMAL_FORM)}
