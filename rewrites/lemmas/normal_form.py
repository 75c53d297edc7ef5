"""Laws that terms are built by: the normal form applies them by itself, and no finder looks for them.

Each is bound to the code of ``verifycompile.ir`` and of ``Builder`` by a test (``tests/lemmas/test_laws.py``): both
sides, built as terms, are one term where the guards are met, and are not where one is not met and the law is false.
"""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern

_ZERO: Pattern = ("zero",)
_ONE: Pattern = ("one",)
_LOWEST: Pattern = ("minus_infinity",)

_FUNCTIONS = (
    Lemma(
        "VL30", "exponential-of-sum", "the exponential of a sum is the product of the exponentials",
        ("exp", ("add", "a", "b")), ("mul", ("exp", "a"), ("exp", "b")), (("finite", "a"),),
    ),
    Lemma(
        "VL31", "exponential-of-logarithm", "the exponential of p log(a) is a to the power of p",
        ("exp", ("scale", "p", ("log", "a"))), ("power", "p", "a"), (("positive", "a"),),
    ),
    Lemma("VL32", "logarithm-of-exponential", "log(exp(a)) = a", ("log", ("exp", "a")), "a"),
    Lemma(
        "VL33", "logarithm-of-product", "the logarithm of a product is that of a positive factor and that of the rest",
        ("log", ("mul", "a", "b")), ("add", ("log", "a"), ("log", "b")), (("positive", "b"),),
    ),
    Lemma(
        "VL34", "power-of-product", "a power of a product is that of a positive factor times that of the rest",
        ("power", "p", ("mul", "a", "b")), ("mul", ("power", "p", "a"), ("power", "p", "b")), (("positive", "b"),),
    ),
    Lemma(
        "VL142", "power-of-nonnegatives", "a power of a product is that of each factor, where none is negative",
        ("power", "p", ("mul", "a", "b")), ("mul", ("power", "p", "a"), ("power", "p", "b")),
        (("nonnegative", "a"), ("nonnegative", "b")),
    ),
    Lemma(
        "VL35", "power-of-exponential", "exp(a) to the power of p is exp(p a)",
        ("power", "p", ("exp", "a")), ("exp", ("scale", "p", "a")),
    ),
    Lemma(
        "VL46", "power-of-power", "a to the power of p, to the power of q, is a to the power of p q, for no negative a",
        ("power", "q", ("power", "p", "a")), ("power", ("times", "p", "q"), "a"), (("nonnegative", "a"),),
    ),
    Lemma(
        "VL131", "inverse-of-power", "the inverse of a to the power of p is a to the power of -p",
        ("power", ("minus_one",), ("power", "p", "a")), ("power", ("times", ("minus_one",), "p"), "a"),
        (("finite", "a"),),
    ),
    Lemma(
        "VL65", "absolute-value", "the absolute value of a value that is not negative is the value",
        ("abs", "a"), "a", (("nonnegative", "a"),),
    ),
    Lemma(
        "VL178", "logarithm-of-power", "the logarithm of a positive value to the power of p is p times its logarithm",
        ("log", ("power", "p", "a")), ("scale", "p", ("log", "a")), (("positive", "a"),),
    ),
    Lemma("VL179", "square", "a to the power of 2 is a a", ("power", ("two",), "a"), ("mul", "a", "a")),
    Lemma(
        "VL36", "maximum-exchange", "maxima over i and j change places",
        ("max", "i", ("max", "j", "a")), ("max", "j", ("max", "i", "a")),
    ),
)  # fmt: skip

_EXTREMES = (
    Lemma(
        "VL160", "maximum-of-multiple", "the maximum of p a is p times that of a, for p above zero",
        ("max", "i", ("scale", "p", "a")), ("scale", "p", ("max", "i", "a")), (("positive_number", "p"),),
    ),
    Lemma(
        "VL161", "maximum-of-sum", "the maximum of a and what is the same for all elements is that of a, and this",
        ("max", "i", ("add", "a", "b")), ("add", ("max", "i", "a"), "b"), (("independent", "b", "i"), ("finite", "b")),
    ),
    Lemma(
        "VL162", "maximum-of-product",
        "the maximum of a times what is the same for all elements and not negative is that of a, times this",
        ("max", "i", ("mul", "a", "b")), ("mul", ("max", "i", "a"), "b"),
        (("independent", "b", "i"), ("nonnegative", "b")),
    ),
    Lemma(
        "VL163", "maximum-of-exponential", "the maximum of exponentials is the exponential of the maximum",
        ("max", "i", ("exp", "a")), ("exp", ("max", "i", "a")),
    ),
    Lemma(
        "VL164", "maximum-of-logarithm", "the maximum of logarithms of positive values is that of the maximum",
        ("max", "i", ("log", "a")), ("log", ("max", "i", "a")), (("positive", "a"),),
    ),
    Lemma(
        "VL165", "maximum-of-power", "the maximum of powers of values that are not negative is that of the maximum",
        ("max", "i", ("power", "p", "a")), ("power", "p", ("max", "i", "a")),
        (("positive_number", "p"), ("nonnegative", "a")),
    ),
    Lemma(
        "VL166", "maximum-with-lower", "the maximum of a and a number that no element is below is a",
        ("maximum", "a", ("number", "p")), "a", (("not_below", "a", "p"),),
    ),
    Lemma(
        "VL167", "positive-count", "a count of elements is above zero where some element is one",
        ("less", _ZERO, ("sum", "i", "m")), ("max", "i", "m"), (("indicator", "m"),),
    ),
)  # fmt: skip

_MASKS = (
    Lemma(
        "VL38", "negation-of-negation", "the negation of the negation of a value that is 0 or 1 is the value",
        ("not", ("not", "m")), "m", (("indicator", "m"),),
    ),
    Lemma(
        "VL39", "negated-comparison", "a is not less than b where b is less than a or equal: there is no NaN",
        ("not", ("less", "a", "b")), ("less_equal", "b", "a"),
    ),
    Lemma(
        "VL66", "disjunction", "`or` of masks is the negation of the product of their negations",
        ("or", "m", "n"), ("not", ("mul", ("not", "m"), ("not", "n"))),
    ),
    Lemma(
        "VL143", "equal-masks", "masks are equal where each of them implies the other one",
        ("equal", "m", "n"), ("mul", ("not", ("mul", "m", ("not", "n"))), ("not", ("mul", "n", ("not", "m")))),
        (("indicator", "m"), ("indicator", "n")),
    ),
    Lemma(
        "VL144", "less-mask", "a mask is less than another one where the other one holds alone",
        ("less", "m", "n"), ("mul", ("not", "m"), "n"), (("indicator", "m"), ("indicator", "n")),
    ),
    Lemma(
        "VL145", "at-most-mask", "a mask is at most another one where it implies it",
        ("less_equal", "m", "n"), ("not", ("mul", "m", ("not", "n"))), (("indicator", "m"), ("indicator", "n")),
    ),
    Lemma(
        "VL63", "exponential-of-mask", "exp of minus infinity under a mask, and of x elsewhere, is exp(x) without it",
        ("exp", ("where", "m", _LOWEST, "x")), ("mul", ("not", "m"), ("exp", "x")),
    ),
    Lemma(
        "VL132", "exponential-of-masked", "exp of x under a mask, and of minus infinity elsewhere, is exp(x) under it",
        ("exp", ("where", "m", "x", _LOWEST)), ("mul", "m", ("exp", "x")), (("indicator", "m"),),
    ),
    Lemma(
        "VL133", "exponential-of-infinite-mask", "exp of minus infinity under a mask is the negation of the mask",
        ("exp", ("mul", "m", _LOWEST)), ("not", "m"), (("indicator", "m"),),
    ),
    Lemma(
        "VL140", "choice-in-choice", "a choice of a choice with the same second value is one under both masks",
        ("where", "m", ("where", "n", "a", "b"), "b"), ("where", ("mul", "m", "n"), "a", "b"),
    ),
    Lemma(
        "VL141", "choice-else-choice", "a choice or else a choice of the same first value is one under either mask",
        ("where", "m", "a", ("where", "n", "a", "b")), ("where", ("or", "m", "n"), "a", "b"),
    ),
)  # fmt: skip

_CHOICES = (
    Lemma(
        "VL180", "choice-or-zero", "a choice or else zero is the mask times the value",
        ("where", "m", "a", _ZERO), ("mul", "m", "a"), (("indicator", "m"),),
    ),
    Lemma(
        "VL181", "choice-by-negation", "a choice by the negation of a mask is the other choice by the mask",
        ("where", ("not", "m"), "a", "b"), ("where", "m", "b", "a"),
    ),
    Lemma(
        "VL182", "choice-of-masks", "a choice of masks is one of both where its own mask holds too, or does not",
        ("where", "m", "a", "b"), ("or", ("mul", "m", "a"), ("mul", ("not", "m"), "b")),
        (("indicator", "m"), ("indicator", "a"), ("indicator", "b")),
    ),
    Lemma(
        "VL183", "number-leaves-choice", "a choice between multiples by one number is a multiple of the choice",
        ("where", "m", ("scale", "p", "a"), ("scale", "p", "b")), ("scale", "p", ("where", "m", "a", "b")),
    ),
    Lemma(
        "VL184", "choice-of-multiples", "a choice between multiples of one value is that between the numbers, times it",
        ("where", "m", ("scale", "p", "a"), ("scale", "q", "a")),
        (
            "mul",
            ("add", ("scale", ("plus", "p", ("times", ("minus_one",), "q")), "m"), ("scale", "q", _ONE)),
            "a",
        ),
        (("indicator", "m"),),
    ),
)  # fmt: skip

_COMPARISONS = (
    *(
        Lemma(
            code, f"negated-{name}", f"-a {sign} -b where b {sign} a",
            (operator, ("scale", ("minus_one",), "a"), ("scale", ("minus_one",), "b")), (operator, "b", "a"),
        )
        for code, name, sign, operator in (
            ("VL172", "at-most", "<=", "less_equal"), ("VL173", "less", "<", "less"), ("VL174", "equal", "==", "equal"),
        )
    ),
    Lemma(
        "VL185", "less-between-whole-numbers", "a whole number is less than another one where one more is at most that",
        ("less", "a", "b"), ("less_equal", ("add", "a", _ONE), "b"), (("whole", "a"), ("whole", "b")),
    ),
    Lemma(
        "VL186", "common-factor", "multiples of whole numbers by a number above zero compare as the numbers do",
        ("less_equal", ("scale", "p", "a"), ("scale", "p", "b")), ("less_equal", "a", "b"),
        (("positive_number", "p"), ("whole", "a"), ("whole", "b")),
    ),
    Lemma(
        "VL90", "no-such-position", "no position is a negative number, a fraction, or the size or more",
        ("equal", ("place", "i"), ("number", "p")), _ZERO, (("outside", "p", "i"),),
    ),
    Lemma(
        "VL93", "equal-to-less", "what is above a number is not equal to it",
        ("equal", "a", ("number", "p")), _ZERO, (("above", "a", "p"),),
    ),
    Lemma(
        "VL134", "at-most-less", "what is above a number is not at most that number",
        ("less_equal", "a", ("number", "p")), _ZERO, (("above", "a", "p"),),
    ),
    Lemma(
        "VL135", "less-than-above", "a number is less than what is above it",
        ("less", ("number", "p"), "a"), _ONE, (("above", "a", "p"),),
    ),
    Lemma(
        "VL176", "above-zero", "of a value that is not negative zero is less where it is not zero",
        ("less", _ZERO, "a"), ("not", ("equal", "a", _ZERO)), (("nonnegative", "a"),),
    ),
    Lemma(
        "VL177", "at-most-zero", "a value that is not negative is at most zero where it is zero",
        ("less_equal", "a", _ZERO), ("equal", "a", _ZERO), (("nonnegative", "a"),),
    ),
    Lemma(
        "VL136", "less-than-bound", "what is not below a number is not less than it",
        ("less", "a", ("number", "p")), _ZERO, (("not_below", "a", "p"),),
    ),
    Lemma(
        "VL137", "at-most-bounded", "a number is at most what is not below it",
        ("less_equal", ("number", "p"), "a"), _ONE, (("not_below", "a", "p"),),
    ),
)  # fmt: skip

NORMAL_FORM = (*_FUNCTIONS, *_EXTREMES, *_MASKS, *_CHOICES, *_COMPARISONS)
