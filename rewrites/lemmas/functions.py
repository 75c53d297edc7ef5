"""Laws of functions for which there is no normal form: the e-graph looks for those that an equality needs.

Each is data, as in ``lemma.py``, with more operators: functions of one value by their names, ``("maximum", a, b)``,
``("where", c, a, b)``, ``("power", p, a)``, ``("zero",)``, and ``("minus_one",)``, ``("half",)``, ``("two",)``.
From this table come the rules of the e-graph, the check of every instance that fired (``refinement/closure.py``), the
page, and the tests on numbers, with and without each guard.

Guards: ``("defined", a)`` for a value that is a number wherever the inputs are, ``("indicator", c)`` for one
whose elements are 0 or 1, ``("positive_number", p)`` and ``("negative_number", p)`` for one above or
below zero.
"""

from __future__ import annotations

from verifycompile.rewrites.lemmas.lemma import Guard, Lemma, Pattern

_ONE: Pattern = ("one",)
_ZERO: Pattern = ("zero",)
_TWO: Pattern = ("two",)
_HALF: Pattern = ("half",)


def _minus(pattern: Pattern) -> Pattern:
    return ("scale", ("minus_one",), pattern)


def _defined(*names: str) -> tuple[Guard, ...]:
    return tuple(("defined", name) for name in names)


FUNCTION_LAWS = (
    Lemma(
        "VL110", "hyperbolic-tangent", "the hyperbolic tangent of a is twice the sigmoid of 2 a, less one",
        ("tanh", "a"), ("add", ("scale", _TWO, ("sigmoid", ("scale", _TWO, "a"))), _minus(_ONE)),
    ),
    Lemma(
        "VL111", "sigmoid", "the sigmoid of a is 1 / (1 + exp(-a))",
        ("sigmoid", "a"), ("power", ("minus_one",), ("add", _ONE, ("exp", _minus("a")))),
    ),
    Lemma(
        "VL112", "logarithm-of-sigmoid", "the logarithm of the sigmoid of a is -log(1 + exp(-a))",
        ("log_sigmoid", "a"), _minus(("log", ("add", _ONE, ("exp", _minus("a"))))),
    ),
    Lemma("VL113", "logarithm-of-one-plus", "log1p(a) is log(1 + a)", ("log1p", "a"), ("log", ("add", _ONE, "a"))),
    Lemma(
        "VL115", "hyperbolic-sine", "the hyperbolic sine of a is half of exp(a) - exp(-a)",
        ("sinh", "a"), ("scale", _HALF, ("add", ("exp", "a"), _minus(("exp", _minus("a"))))),
    ),
    Lemma(
        "VL116", "hyperbolic-cosine", "the hyperbolic cosine of a is half of exp(a) + exp(-a)",
        ("cosh", "a"), ("scale", _HALF, ("add", ("exp", "a"), ("exp", _minus("a")))),
    ),
    Lemma(
        "VL117", "tangent", "the tangent of a is its sine by its cosine",
        ("tan", "a"), ("mul", ("sin", "a"), ("power", ("minus_one",), ("cos", "a"))),
    ),
    Lemma(
        "VL118", "complementary-error-function", "erfc(a) is 1 - erf(a)",
        ("erfc", "a"), ("add", _ONE, _minus(("erf", "a"))),
    ),
    Lemma("VL119", "absolute-value-by-maximum", "the absolute value of a is the maximum of a and -a",
        ("abs", "a"), ("maximum", "a", _minus("a")),
    ),
    Lemma(
        "VL120", "absolute-value-of-product", "the absolute value of a product is the product of the absolute values",
        ("abs", ("mul", "a", "b")), ("mul", ("abs", "a"), ("abs", "b")), _defined("a", "b"), both_ways=True,
    ),
    Lemma(
        "VL121", "root-of-square", "the root of the square of a is its absolute value",
        ("power", _HALF, ("mul", "a", "a")), ("abs", "a"), _defined("a"),
    ),
    Lemma(
        "VL122", "minimum-by-maximum", "the minimum of a and b is less the maximum of -a and -b",
        ("minimum", "a", "b"), _minus(("maximum", _minus("a"), _minus("b"))),
    ),
    Lemma(
        "VL124", "positive-part-of-multiple", "the positive part of p a is p times that of a, for p above zero",
        ("maximum", ("scale", "p", "a"), _ZERO), ("scale", "p", ("maximum", "a", _ZERO)),
        (("positive_number", "p"), *_defined("a")),
    ),
    Lemma(
        "VL130", "positive-part-of-negative-multiple",
        "the positive part of p a is -p times that of -a, for p below zero",
        ("maximum", ("scale", "p", "a"), _ZERO),
        ("scale", ("times", ("minus_one",), "p"), ("maximum", _minus("a"), _ZERO)),
        (("negative_number", "p"), *_defined("a")),
    ),
    Lemma(
        "VL125", "maximum-associates", "the maximum of three values is the same in either order",
        ("maximum", ("maximum", "a", "b"), "c"), ("maximum", "a", ("maximum", "b", "c")), both_ways=True,
    ),
    Lemma("VL126", "maximum-of-equal", "the maximum of a and a is a", ("maximum", "a", "a"), "a"),
    Lemma(
        "VL123", "maximum-from-one-operand", "the maximum of a and b is b and what a exceeds it by",
        ("maximum", "a", "b"), ("add", "b", ("maximum", ("add", "a", _minus("b")), _ZERO)), _defined("a", "b"),
    ),
    Lemma(
        "VL127", "choice-by-mask", "a choice between two numbers is the second, and under the mask their difference",
        ("where", "c", "a", "b"), ("add", "b", ("mul", "c", ("add", "a", _minus("b")))),
        (("indicator", "c"), *_defined("a", "b")),
    ),
    Lemma(
        "VL128", "maximum-of-choice", "the maximum of a choice and d is the choice between the maxima",
        ("maximum", ("where", "c", "a", "b"), "d"), ("where", "c", ("maximum", "a", "d"), ("maximum", "b", "d")),
        both_ways=True,
    ),
    Lemma(
        "VL129", "negated-mask", "the negation of a mask is one less the mask",
        ("not", "c"), ("add", _ONE, _minus("c")), (("indicator", "c"),),
    ),
)  # fmt: skip
"""Laws that rewrite a function into others, and of maxima and choices."""

DEFINITIONS = tuple(law for law in FUNCTION_LAWS if law.left[1:] == ("a",) and not law.guards and law.left[0] != "abs")
"""Laws that say of a function of one value what it is by exponentials, logarithms and powers."""
