"""Laws of the real numbers that the normal form applies by itself, as equations.

The functions of ``verifycompile.ir`` build every term by these laws, so no search ever looks for them. They are listed
as data for the catalogue, and each is tried on numbers with its guards and shown to fail without them.

Beside the operators of ``lemma.py``: ``("exp", a)``, ``("log", a)``, ``("power", p, a)``, ``("max", i, a)``,
``("not", a)``, ``("less", a, b)``, ``("less_equal", a, b)``.
Guards: ``("positive", a, "")``, ``("indicator", a, "")`` for a value whose elements are 0 or 1.
"""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma

LAWS = (
    Lemma(
        "VL30", "exponential-of-sum", "the exponential of a sum is the product of the exponentials",
        ("exp", ("add", "a", "b")), ("mul", ("exp", "a"), ("exp", "b")),
    ),
    Lemma(
        "VL31", "exponential-of-logarithm", "the exponential of p log(a) is a to the power of p",
        ("exp", ("scale", "p", ("log", "a"))), ("power", "p", "a"), (("positive", "a", ""),),
    ),
    Lemma("VL32", "logarithm-of-exponential", "log(exp(a)) = a", ("log", ("exp", "a")), "a"),
    Lemma(
        "VL33", "logarithm-of-product", "the logarithm of a product of positive factors is the sum of the logarithms",
        ("log", ("mul", "a", "b")), ("add", ("log", "a"), ("log", "b")),
        (("positive", "a", ""), ("positive", "b", "")),
    ),
    Lemma(
        "VL34", "power-of-product", "a power of a product of positive factors is the product of their powers",
        ("power", "p", ("mul", "a", "b")), ("mul", ("power", "p", "a"), ("power", "p", "b")),
        (("positive", "a", ""), ("positive", "b", "")),
    ),
    Lemma(
        "VL35", "power-of-exponential", "exp(a) to the power of p is exp(p a)",
        ("power", "p", ("exp", "a")), ("exp", ("scale", "p", "a")),
    ),
    Lemma(
        "VL36", "maximum-exchange", "maxima over i and j change places",
        ("max", "i", ("max", "j", "a")), ("max", "j", ("max", "i", "a")),
    ),
    Lemma(
        "VL37", "indicator-squared", "a value that is 0 or 1 is its own square",
        ("mul", "a", "a"), "a", (("indicator", "a", ""),),
    ),
    Lemma(
        "VL38", "negation-of-negation", "the negation of the negation of a value that is 0 or 1 is the value",
        ("not", ("not", "a")), "a",
    ),
    Lemma(
        "VL39", "negated-comparison", "a is not less than b where b is less than a or equal: there is no NaN",
        ("not", ("less", "a", "b")), ("less_equal", "b", "a"),
    ),
    Lemma(
        "VL46", "power-of-power", "a positive value to the power of p, to the power of q, is it to the power of p q",
        ("power", "q", ("power", "p", "a")), ("power", ("times", "p", "q"), "a"), (("positive", "a", ""),),
    ),
)  # fmt: skip
