"""Exponentials, logarithms and powers."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma

MERGE_EXPONENTIALS = Lemma(
    "VL27", "merge-exponentials", "the product of exponentials of multiples of a number is one exponential",
    ("mul", ("exp", ("scale", "p", "a")), ("exp", ("scale", "q", "a"))), ("exp", ("scale", ("plus", "p", "q"), "a")),
    (("number", "a"),),
)  # fmt: skip

MERGE_POWERS = Lemma(
    "VL42", "merge-powers", "the product of powers of a positive value is one power",
    ("mul", ("power", "p", "a"), ("power", "q", "a")), ("power", ("plus", "p", "q"), "a"), (("positive", "a"),),
)  # fmt: skip

REST_OF_SHARE = Lemma(
    "VL88", "rest-of-share", "what is left when a share is taken is the other share",
    ("add", "x", ("scale", ("minus_one",), ("mul", "x", "b", ("power", ("minus_one",), ("add", "a", "b"))))),
    ("mul", "x", "a", ("power", ("minus_one",), ("add", "a", "b"))),
    (("positive", "a"), ("positive", "b"), ("finite", "x")),
)  # fmt: skip

EXPONENTIALS = (MERGE_EXPONENTIALS, MERGE_POWERS, REST_OF_SHARE)
