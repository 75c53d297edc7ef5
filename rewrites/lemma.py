"""Lemmas of the e-graph stage as data: equations over a few operators, with guards.

A pattern is a variable (a string) or a tuple ``(operator, arguments...)``:

    ("add", a, b)  ("mul", a, b)  ("scale", p, a)  ("sum", i, a)  ("one",)
    and on numbers  ("plus", p, q)  ("times", p, q)

``a b c`` stand for values over named indices, ``p q`` for rational numbers, ``i j`` for names of bound indices.
A guard ``("independent", a, i)`` says that the value ``a`` does not depend on the index ``i``.
The same data is the rule of the e-graph, the property test on torch tensors and the statement that z3 proves.
"""

from __future__ import annotations

import dataclasses

Pattern = str | tuple["Pattern", ...]
Guard = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Lemma:
    """``left`` equals ``right`` for all values that meet the guards. ``both_ways``: rewritten in either direction."""

    code: str
    name: str
    statement: str
    left: Pattern
    right: Pattern
    guards: tuple[Guard, ...] = ()
    both_ways: bool = False

    @property
    def equation(self) -> str:
        """Both sides as text."""
        return f"{spelled(self.left)} = {spelled(self.right)}"


def spelled(pattern: Pattern) -> str:
    """A pattern as a call: ``sum(i, mul(a, b))``."""
    if isinstance(pattern, str):
        return pattern
    operator, *arguments = pattern
    return f"{operator}({', '.join(spelled(argument) for argument in arguments)})"


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
