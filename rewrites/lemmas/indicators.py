"""Values that are 0 or 1: masks, comparisons, and look-ups, which are sums under a comparison with a position."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma

MASK_ONCE = Lemma(
    "VL41", "mask-once", "a value that is 0 or 1 is its own square",
    ("mul", "m", "m"), "m", (("indicator", "m"),),
)  # fmt: skip

MASK_OF_MASKED = Lemma(
    "VL70", "mask-of-masked", "a mask of a sum all of whose summands have it changes nothing",
    ("mul", "m", ("each", "k", ("mul", "m", "a"))), ("each", "k", ("mul", "m", "a")),
    (("indicator", "m"), ("independent", "m", "k")),
)  # fmt: skip

BESIDE_MASK = Lemma(
    "VL169", "beside-mask", "beside a mask a value is what it is where the mask is one",
    ("mul", "m", "a"), ("mul", "m", "b"), (("indicator", "m"), ("beside", "m", "a", "b")),
)  # fmt: skip

SAME_TRUTH = Lemma(
    "VL21", "same-truth", "masks that hold at the same places are equal",
    "m", "n", (("indicator", "m"), ("indicator", "n"), ("equivalent", "m", "n")),
)  # fmt: skip

IMPLIED_MASK = Lemma(
    "VL22", "implied-mask", "a mask that another one implies changes nothing beside it",
    ("mul", "m", "n"), "m", (("indicator", "m"), ("implies", "m", "n")),
)  # fmt: skip

KNOWN_MASK = Lemma(
    "VL45", "known-mask", "a mask that holds for all indices that the spec takes without error is one",
    "m", ("one",), (("known", "m"),),
)  # fmt: skip

MASKS_JOIN_SUM = Lemma(
    "VL40", "masks-join-sum", "masks of a sum of masked values are masks in it",
    ("mul", "m", ("sum", "l", ("mul", "n", "a"))), ("sum", "l", ("mul", "c", "a")),
    (
        ("independent", "m", "l"), ("indicator", "m"), ("indicator", "n"), ("indicator", "c"),
        ("equivalent", ("mul", "m", "n"), "c"),
    ),
)  # fmt: skip

EQUAL_TO_ITSELF = Lemma(
    "VL99", "equal-to-itself", "a value is equal to itself: there is no NaN", ("equal", "a", "a"), ("one",),
)  # fmt: skip

LOOK_UP = Lemma(
    "VL25", "look-up", "a sum under a comparison of its index with a position is the summand at the position",
    ("sum", "j", ("mul", ("equal", "n", ("place", "j")), "a")), ("at", "a", "j", "n"),
    (("independent", "n", "j"), ("within", "n", "j")),
)  # fmt: skip

LOOKED_UP = Lemma(
    "VL175", "looked-up", "a sum under a comparison of its index with a position is what the summand is beside it",
    ("sum", "j", ("mul", ("equal", "n", ("place", "j")), "a")), "b",
    (
        ("independent", "n", "j"), ("independent", "b", "j"), ("within", "n", "j"),
        ("beside", ("equal", "n", ("place", "j")), "b", "a"),
    ),
)  # fmt: skip

PLACE_LOOKED_UP = Lemma(
    "VL146", "place-looked-up", "a position under a comparison of it with a value is the value",
    ("sum", "j", ("mul", ("equal", "n", ("place", "j")), ("place", "j"), "a")),
    ("sum", "j", ("mul", ("equal", "n", ("place", "j")), "n", "a")),
)  # fmt: skip

COUNT_OR = Lemma(
    "VL23", "count-or", "an index that is a position, or an exception, is one position, or none",
    ("sum", "j", ("equal", "n", ("place", "j"))), ("not", ("equal", "n", ("number", "p"))),
    (("independent", "n", "j"), ("within_or", "n", "j", "p")),
)  # fmt: skip

LOOK_UP_AGAIN = Lemma(
    "VL94", "look-up-again", "what is looked up where the index is a known position is the summand at the position",
    ("sum", "j", ("mul", ("equal", "x", "n"), ("equal", "x", ("place", "j")), "a")),
    ("mul", ("equal", "x", "n"), ("at", "a", "j", "n")),
    (("independent", "x", "j"), ("independent", "n", "j"), ("within", "n", "j")),
)  # fmt: skip

LOOK_UP_INSIDE = Lemma(
    "VL29", "look-up-inside", "a look-up where the index is a known position is the value at the position",
    ("mul", ("equal", "x", "n"), ("sum", "j", ("mul", ("equal", "x", ("place", "j")), "a"))),
    ("mul", ("equal", "x", "n"), ("at", "a", "j", "n")),
    (("independent", "x", "j"), ("within", "n", "j")),
)  # fmt: skip

COMPARED_DIGITS = Lemma(
    "VL47", "compared-digits", "numbers are equal where their upper digits and their lower digits are",
    ("equal", ("spell", "q", "a", "c"), ("spell", "q", "d", "e")),
    ("mul", ("equal", "a", "d"), ("equal", "c", "e")),
    (("whole", "a"), ("whole", "d"), ("digit", "c", "q"), ("digit", "e", "q")),
)  # fmt: skip

INDICATORS = (
    MASK_ONCE, MASK_OF_MASKED, BESIDE_MASK, SAME_TRUTH, IMPLIED_MASK, KNOWN_MASK, MASKS_JOIN_SUM, EQUAL_TO_ITSELF,
    LOOK_UP, LOOKED_UP, PLACE_LOOKED_UP, COUNT_OR, LOOK_UP_AGAIN, LOOK_UP_INSIDE, COMPARED_DIGITS,
)  # fmt: skip
