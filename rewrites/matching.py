"""Lemmas that are functions: they look for factors of a contraction or summands, and rewrite what they match.

An equation of sums, products and scalings is data (``lemma.py``). What a mask selects, and whether an index stays in
its table, depends on sizes and offsets; such a lemma is a function that asks z3 at every single match. Others only take
views apart and build them again (pieces, ranges, exponents); these are tested on numbers, with negative twins.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verifycompile.ir.term import TermPool, View

Rule = Callable[[TermPool, Sequence[View], Any], Sequence[View] | None]
"""A rule on the factors of a contraction or on the summands of a combination (see ``TermPool``)."""


@dataclasses.dataclass(frozen=True)
class MatchingLemma:
    """``rule`` under a stable code. It is called as the rule is: ``lemma(pool, views, ...)``."""

    code: str
    name: str
    rule: Rule

    def __call__(self, pool: TermPool, views: Sequence[View], rest: Any) -> Sequence[View] | None:
        return self.rule(pool, views, rest)

    @property
    def statement(self) -> str:
        """What it says, in a sentence: the first of the rule's docstring."""
        documentation = inspect.getdoc(self.rule) or ""
        return " ".join(documentation.split("\n\n", 1)[0].split()).rstrip(".")

    @property
    def location(self) -> str:
        """File and function of the rule."""
        file = Path(inspect.getsourcefile(self.rule) or "")
        return f"rewrites/{file.parent.name}/{file.name}: {getattr(self.rule, '__name__', '')}"


def matching_lemma(code: str, name: str) -> Callable[[Rule], MatchingLemma]:
    """Make the decorated rule a lemma. ``name``: as it is written into the trace of a proof."""
    return lambda rule: MatchingLemma(code, name, rule)
