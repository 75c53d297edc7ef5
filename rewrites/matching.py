"""Lemmas that are functions: they look for factors of a contraction, ask z3 about their integers, and rewrite them.

An equation of sums, products and scalings is data (``lemma.py``). What a mask selects, and whether an index stays in
its table, depends on sizes and offsets; such a lemma is a function, and every single match is proved before it is used.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from verifycompile.ir.term import ContractionRule, TermPool, View


@dataclasses.dataclass(frozen=True)
class MatchingLemma:
    """``rule`` under a stable code. It is called as the rule is: ``lemma(pool, factors, free)``."""

    code: str
    name: str
    rule: ContractionRule

    def __call__(self, pool: TermPool, factors: Sequence[View], free: int) -> Sequence[View] | None:
        return self.rule(pool, factors, free)

    @property
    def statement(self) -> str:
        """What it says, in a sentence: the first of the rule's docstring."""
        documentation = inspect.getdoc(self.rule) or ""
        return " ".join(documentation.split("\n\n", 1)[0].split()).rstrip(".")

    @property
    def location(self) -> str:
        """File and function of the rule."""
        file = Path(inspect.getsourcefile(self.rule) or "")
        return f"rewrites/{file.name}: {getattr(self.rule, '__name__', '')}"


def matching_lemma(code: str, name: str) -> Callable[[ContractionRule], MatchingLemma]:
    """Make the decorated rule a lemma. ``name``: as it is written into the trace of a proof."""
    return lambda rule: MatchingLemma(code, name, rule)
