"""Questions to z3: each is asked once, and what it leaves open is not proved.

A question is SMT-LIB text. A certificate lists the texts that were proved, and its checker, which makes the text of
each question from the terms that it is about, answers from that list alone (``answering``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Collection, Generator, Mapping
from typing import Any

from verifycompile.ir import limit
from verifycompile.ir.size import Size
from verifycompile.rewrites.side_conditions.formula import Formula
from verifycompile.rewrites.side_conditions.smt_lib import script
from verifycompile.rewrites.side_conditions.trials import counterexample

# z3 decides these linear integer questions in a few milliseconds; the limit keeps a hard one from stalling.
_MOST_STEPS = 5_000_000
"""Of z3's own count, which is the same on every machine: about half a second."""
_FIRST_STEPS = _MOST_STEPS // 10
_TRIALS = 64
"""Points at which a claim that z3 proves must hold as well."""
_TIMEOUT_MILLISECONDS = 10_000
"""Only where the steps of a question are slow ones."""


@dataclasses.dataclass(frozen=True)
class Question:
    """Whether ``claim`` holds for all values of its variables and all indices within their dimensions.

    ``sizes``: of the dimensions whose index occurs; None for one whose size is no known number.
    """

    claim: Formula
    sizes: tuple[tuple[int, int | None], ...]

    @functools.cached_property
    def text(self) -> str:
        """The question as a solver is asked, equal for equal questions."""
        return script(self.claim, dict(self.sizes))


_answers: dict[str, bool] = {}
_durations: list[float] = []
_proved = [0]
_listeners: list[dict[str, Question]] = []
_listed: list[Collection[str]] = []
_unanswered: list[str] = []


def holds(claim: Formula, indices: Mapping[int, Any], shape: tuple[Size, ...]) -> bool:
    """Whether z3 proves ``claim`` for all values of its variables and all indices within their dimensions."""
    sizes = ((dim, size if isinstance(size := shape[dim], int) else None) for dim in sorted(indices))
    return proved(Question(claim, tuple(sizes)))


def proved(question: Question) -> bool:
    """Whether z3 proves the claim, or has done so before."""
    started = time.perf_counter()
    text = question.text
    known = text in _listed[-1] if _listed else _answers.get(text)
    if known is None:
        known = counterexample(question.claim, dict(question.sizes), _TRIALS) is None and follows(text)
        if text not in _unanswered:  # after more questions z3 may find an answer
            _answers[text] = known
    if known:
        _proved[0] += 1
        for listener in _listeners:
            listener[text] = question
    _durations.append(time.perf_counter() - started)
    return known


def follows(text: str) -> bool:
    """Whether z3 finds that what the text asserts never holds."""
    import z3  # here, because a certificate is checked without a solver

    limit.check()
    # The plain solver needs a third of the time for what most questions ask, and does not simplify the others first.
    for make, most_steps in ((z3.SimpleSolver, _FIRST_STEPS), (z3.Solver, _MOST_STEPS)):
        solver = make()
        solver.set("rlimit", most_steps)
        solver.set("timeout", _TIMEOUT_MILLISECONDS)
        try:
            solver.from_string(text)
            answer = solver.check()
        except z3.Z3Exception:
            return False
        if answer != z3.unknown:
            return answer == z3.unsat
    _unanswered.append(text)
    return False


# ------------------------------------------------------------------------------------------------ listed answers


@contextlib.contextmanager
def listening() -> Generator[dict[str, Question]]:
    """Collects all questions that are answered with yes, by their texts."""
    found: dict[str, Question] = {}
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.remove(found)


@contextlib.contextmanager
def answering(listed: Collection[str]) -> Generator[None]:
    """Answers from a list: yes to what is on it, no to anything else, and no solver."""
    _listed.append(listed)
    try:
        yield
    finally:
        _listed.pop()


def number_proved() -> int:
    """How often a question was answered with yes."""
    return _proved[0]


def take_durations() -> list[float]:
    """Seconds of every question since the last call."""
    taken = list(_durations)
    _durations.clear()
    return taken


def take_unanswered() -> list[str]:
    """Questions since the last call that z3 gave up at its time limit."""
    taken = list(_unanswered)
    _unanswered.clear()
    return taken
