"""Properties of terms that follow from those of their operands, each found once.

Values share operands, so a program of some hundred nodes has terms with more paths through them than anyone could
follow: what is asked of a term is asked of its operands first, one after the other, and kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from verifycompile.ir.term import Term, terms_of
from verifycompile.walks import parts_first


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
        return parts_first(self._known, term, self._asked, self._holds) if known is None else known

    def _asked(self, term: Term) -> Iterable[Term]:
        return terms_of(term) if self._asks_operands(term) else ()
