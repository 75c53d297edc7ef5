"""Laws of sums, products and scalings. The normal form and the ring prover decide them."""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma

LINEAR_ALGEBRA = (
    Lemma("VL01", "add-commutes", "a + b = b + a", ("add", "a", "b"), ("add", "b", "a")),
    Lemma(
        "VL02", "add-associates", "(a + b) + c = a + (b + c)",
        ("add", ("add", "a", "b"), "c"), ("add", "a", ("add", "b", "c")), both_ways=True,
    ),
    Lemma("VL03", "multiply-commutes", "a b = b a", ("mul", "a", "b"), ("mul", "b", "a")),
    Lemma(
        "VL04", "multiply-associates", "(a b) c = a (b c)",
        ("mul", ("mul", "a", "b"), "c"), ("mul", "a", ("mul", "b", "c")), both_ways=True,
    ),
    Lemma(
        "VL05", "multiply-distributes", "(a + b) c = a c + b c",
        ("mul", ("add", "a", "b"), "c"), ("add", ("mul", "a", "c"), ("mul", "b", "c")),
    ),
    Lemma(
        "VL06", "sum-distributes", "the sum over i of a + b is the sum of a plus the sum of b",
        ("sum", "i", ("add", "a", "b")), ("add", ("sum", "i", "a"), ("sum", "i", "b")),
    ),
    Lemma(
        "VL07", "sum-scale", "the sum over i of p a is p times the sum of a",
        ("sum", "i", ("scale", "p", "a")), ("scale", "p", ("sum", "i", "a")),
    ),
    Lemma(
        "VL08", "sum-factor", "a factor that does not depend on i leaves the sum over i",
        ("sum", "i", ("mul", "a", "b")), ("mul", "a", ("sum", "i", "b")), (("independent", "a", "i"),), both_ways=True,
    ),
    Lemma(
        "VL09", "sum-exchange", "sums over i and j change places",
        ("sum", "i", ("sum", "j", "a")), ("sum", "j", ("sum", "i", "a")),
    ),
    Lemma(
        "VL10", "multiply-scale", "(p a) b = p (a b)",
        ("mul", ("scale", "p", "a"), "b"), ("scale", "p", ("mul", "a", "b")),
    ),
    Lemma(
        "VL11", "scale-scale", "p (q a) = (p q) a",
        ("scale", "p", ("scale", "q", "a")), ("scale", ("times", "p", "q"), "a"),
    ),
    Lemma(
        "VL12", "scale-distributes", "p (a + b) = p a + p b",
        ("scale", "p", ("add", "a", "b")), ("add", ("scale", "p", "a"), ("scale", "p", "b")),
    ),
    Lemma(
        "VL13", "collect", "p a + q a = (p + q) a",
        ("add", ("scale", "p", "a"), ("scale", "q", "a")), ("scale", ("plus", "p", "q"), "a"),
    ),
    Lemma("VL14", "multiply-one", "1 a = a", ("mul", ("one",), "a"), "a"),
)  # fmt: skip
