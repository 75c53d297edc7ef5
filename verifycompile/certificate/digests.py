"""Texts by which terms, views and values are known in every process: equal ones have equal texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from verifycompile.ir.term import Term, TermPool, View, terms_of
from verifycompile.rewrites.values import Piece, Pieces
from verifycompile.walks import parts_first

_LENGTH = 16


class Digests:
    """Digests of the content of terms. Nothing rests on them: they say where to look, and what is there is checked."""

    def __init__(self) -> None:
        self._of: dict[Term, str] = {}
        self._terms: dict[str, Term] = {}
        self._seen = 0

    def of(self, wanted: Term) -> str:
        """The content of a term and of all that it is made of."""
        return parts_first(self._of, wanted, terms_of, self._digest)

    def _digest(self, term: Term) -> str:
        operands = [(str(v.coefficient), self._of[v.term], str(v.axes)) for v in term.operands]
        return digest((
            term.operation.name, [str(a) for a in term.attributes], operands, [str(s) for s in term.index_sizes],
            term.free, term.summed, term.cores, term.fresh,
        ))  # fmt: skip

    def term(self, pool: TermPool, text: str) -> Term | None:
        """The term of a pool with this digest; all pools asked for must be one."""
        if text not in self._terms:
            for term in pool.terms[self._seen :]:
                self._terms[self.of(term)] = term
            self._seen = len(pool)
        return self._terms.get(text)

    def position(self, pool: TermPool, views: Sequence[View], rest: object) -> str:
        """Factors or summands, with what is known meanwhile: by what a lemma that applies there is found again."""
        known = sum(map(len, pool.facts.values())), len(pool.aliases), len(pool.squares)
        written = [(str(v.coefficient), self.of(v.term), v.axes) for v in views]
        return digest((written, views[0].shape, rest, known))

    def value(self, value: Any) -> str:
        """The value of a node."""
        return digest(self._described(value))

    def _described(self, value: Any) -> str:
        if isinstance(value, View):
            return f"{value.coefficient} {self.of(value.term)} {value.shape} {value.axes}"
        if isinstance(value, Pieces):
            return f"pieces of {self._described(value.view)}"
        if isinstance(value, Piece):
            return "a piece"
        if isinstance(value, (list, tuple)):
            return f"({', '.join(self._described(item) for item in value)})"
        return f"{type(value).__name__} {value}"


def digest(content: object) -> str:
    """A text for a content that is written alike in every process."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:_LENGTH]
