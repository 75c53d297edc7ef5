"""Properties of terms that follow from those of their operands, each found once.

Values share operands, so a program of some hundred nodes has terms with more paths through them than anyone could
follow: what is asked of a term is asked of its operands first, one after the other, and kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from verifycompile.ir.term import Term


class TermProperty:
    """Whether something holds for a term.

    ``asks_operands``: whether the answer depends on that for the operands. ``holds``: the answer, which may ask for
    the operands' own by calling this object. Terms never change, so neither do answers; they live as long as the term.
    """

    def __init__(self, asks_operands: Callable[[Term], bool], holds: Callable[[Term], bool]) -> None:
        self._asks_operands = asks_operands
        self._holds = holds
        self._known: weakref.WeakKeyDictionary[Term, bool] = weakref.WeakKeyDictionary()

    def __call__(self, term: Term) -> bool:
        known = self._known.get(term)
        if known is not None:
            return known
        pending = [term]
        while pending:
            current = pending[-1]
            if current in self._known:
                pending.pop()
                continue
            missing = self._unknown_operands(current)
            if missing:
                pending.extend(missing)
                continue
            self._known[pending.pop()] = self._holds(current)
        return self._known[term]

    def _unknown_operands(self, term: Term) -> list[Term]:
        if not self._asks_operands(term):
            return []
        return [view.term for view in term.operands if view.term not in self._known]
