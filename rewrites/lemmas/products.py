"""Products and sums of values some of which may be infinite, where the laws of the real numbers need a guard."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma

DISTRIBUTE = Lemma(
    "VL24", "distribute", "a finite factor of a sum is one of each summand",
    ("mul", "f", ("each", "k", "a")), ("each", "k", ("mul", "f", "a")),
    (("independent", "f", "k"), ("finite", "f")),
)  # fmt: skip

DISTRIBUTE_IN_SUM = Lemma(
    "VL168", "distribute-in-sum", "a sum of a finite factor times a sum of two values is the sum of both sums",
    ("sum", "l", ("mul", "f", ("add", "a", "b"))),
    ("add", ("sum", "l", ("mul", "f", "a")), ("sum", "l", ("mul", "f", "b"))), (("finite", "f"),),
)  # fmt: skip

OPEN_SUM = Lemma(
    "VL20", "open-sum", "a factor of a sum, summed itself, joins it",
    ("sum", "j", ("mul", "f", ("sum", "l", "a"))), ("sum", "j", ("sum", "l", ("mul", "f", "a"))),
    (("independent", "f", "l"), ("finite", "f")),
)  # fmt: skip

EXCHANGE_SUMS = Lemma(
    "VL87", "exchange-sums", "of two sums the inner one may be taken outside, with the factors that only it reads",
    ("sum", "j", ("mul", "g", ("sum", "l", ("mul", "e", "a")))),
    ("sum", "l", ("mul", "e", ("sum", "j", ("mul", "a", "g")))),
    (("independent", "e", "j"), ("independent", "g", "l"), ("finite", "e"), ("finite", "g")),
)  # fmt: skip

PRODUCTS = (DISTRIBUTE, DISTRIBUTE_IN_SUM, OPEN_SUM, EXCHANGE_SUMS)
