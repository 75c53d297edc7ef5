"""A lemma as one object: an equation in the IR's own operators over named indices, with its guards.

A pattern is a variable (a string) or a tuple ``(operator, arguments...)``; ``OPERATORS`` says what the arguments are.
Values may depend on every index in whose scope they stand, unless a guard says that they do not; other dimensions are
fixed, because no equation relates two positions of theirs. ``("sum", i, a)`` and ``("each", k, a)`` are the same sum,
the first over a dimension, the second over the summands of a written sum.

A guard is ``(kind, arguments...)``; ``GUARDS`` says in words what each kind demands.

From this object come the test on numbers, the proof by z3, the rule of the e-graph, the page ``docs/lemmas.md``, and
the check of each instance (``dispose.py``).
"""

from __future__ import annotations

import dataclasses

Pattern = str | tuple["Pattern", ...]
Guard = tuple[Pattern, ...]

VALUE, NUMBER, INDEX = "value", "number", "index"

FUNCTIONS = (
    "abs", "cos", "cosh", "erf", "erfc", "log1p", "log_sigmoid", "sigmoid", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
"""Functions of one value, by the names that torch has for them."""

OPERATORS: dict[str, tuple[str, ...]] = {
    "zero": (),
    "one": (),
    "minus_infinity": (),
    "add": (VALUE, VALUE),
    "mul": (VALUE, VALUE),
    "scale": (NUMBER, VALUE),
    "sum": (INDEX, VALUE),
    "each": (INDEX, VALUE),
    "max": (INDEX, VALUE),
    "exp": (VALUE,),
    "log": (VALUE,),
    "power": (NUMBER, VALUE),
    "not": (VALUE,),
    "or": (VALUE, VALUE),
    "maximum": (VALUE, VALUE),
    "minimum": (VALUE, VALUE),
    "where": (VALUE, VALUE, VALUE),
    "equal": (VALUE, VALUE),
    "less": (VALUE, VALUE),
    "less_equal": (VALUE, VALUE),
    "place": (INDEX,),
    "range": (INDEX, NUMBER, NUMBER),
    "at": (VALUE, INDEX, VALUE),
    "number": (NUMBER,),
    "spell": (NUMBER, VALUE, VALUE),
    "plus": (NUMBER, NUMBER),
    "times": (NUMBER, NUMBER),
    "minus_one": (),
    "half": (),
    "two": (),
    **dict.fromkeys(FUNCTIONS, (VALUE,)),
}
"""Per operator, what its arguments are; there may be more of the last one. ``place``: the position in an index.
``range``: one from a position up to another one, else zero. ``at``: a value where an index has another position.
``spell``: a number times the first value, and the second one. ``plus``, ``times``: of numbers.
"""

GUARDS = {
    "independent": "`{0}` does not depend on the index `{1}`",
    "positive": "every element of `{0}` is greater than zero",
    "nonnegative": "no element of `{0}` is less than zero",
    "indicator": "every element of `{0}` is 0 or 1",
    "finite": "no element of `{0}` is infinite",
    "number": "no element of `{0}` is minus infinity by a mask of its own",
    "within": "every element of `{0}` is a position of the index `{1}`",
    "within_or": "every element of `{0}` is a position of the index `{1}`, or the number `{2}`, which is none",
    "whole": "every element of `{0}` is a whole number",
    "digit": "every element of `{0}` is a whole number from 0 up to the whole number `{1}`",
    "implies": "`{1}` is 1 wherever `{0}` is 1, as z3 proves at every match, if need be for all indices that the spec "
    "takes without error",
    "equivalent": "`{0}` is 1 exactly where `{1}` is 1, as z3 proves at every match, if need be for all indices that "
    "the spec takes without error",
    "beside": "`{1}` with one for `{0}` wherever that stands in it, and with what is looked up there, is `{2}`",
    "known": "`{0}` is 1 for all indices that the spec takes without error, as z3 proves at every match",
    "reads": "where `{1}` is from `{2}` up to `{3}`, `{0}` is zero at each `{4}` that is in one alone of the ranges "
    "from `{5}` up to `{6}` and from `{7}` up to `{8}`",
    "ordered": "`{0}` is at most `{1}`",
    "outside": "`{0}` is no position of the index `{1}`",
    "above": "every element of `{0}` is greater than `{1}`",
    "not_below": "no element of `{0}` is less than `{1}`",
    "defined": "every element of `{0}` is a number wherever the inputs are",
    "positive_number": "`{0}` is greater than zero",
    "negative_number": "`{0}` is less than zero",
}
"""Per kind of guard, what it demands of its arguments."""


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
