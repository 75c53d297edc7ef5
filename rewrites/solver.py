"""Questions to z3: each is asked once, and what it leaves open is not proved.

The statements are ``formula.py``'s, so that nothing but an unanswered question needs a solver: a certificate lists the
statements that were proved, and its checker answers from that list alone (``answering``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import operator
import time
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

from verifycompile import bounds
from verifycompile.ir.size import Size
from verifycompile.rewrites.formula import Formula, negation, to_data
from verifycompile.rewrites.trials import counterexample

# z3 decides these linear integer questions in a few milliseconds; the limit keeps a hard one from stalling.
_MOST_STEPS = 5_000_000
"""Of z3's own count, which is the same on every machine: about half a second."""
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
        """The question as text, equal for equal questions."""
        return json.dumps([to_data(self.claim), self.sizes])


_answers: dict[str, bool] = {}
_durations: list[float] = []
_proved = [0]
_listeners: list[dict[str, None]] = []
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
        known = _ask(question) and counterexample(question.claim, dict(question.sizes), _TRIALS) is None
        if text not in _unanswered:  # after more questions z3 may find an answer
            _answers[text] = known
    if known:
        _proved[0] += 1
        for listener in _listeners:
            listener[text] = None
    _durations.append(time.perf_counter() - started)
    return known


def _ask(question: Question) -> bool:
    import z3  # here, because a certificate is checked without a solver

    bounds.check()
    solver = z3.Solver()
    solver.set("rlimit", _MOST_STEPS)
    solver.set("timeout", _TIMEOUT_MILLISECONDS)
    for dim, size in question.sizes:
        variable = z3.Int(f"i{dim}")
        solver.add(variable >= 0)
        if size is not None:
            solver.add(variable < size)
    try:
        solver.add(to_z3(negation(question.claim)))
        answer = solver.check()
    except z3.Z3Exception:
        return False
    if answer == z3.unknown:
        _unanswered.append(question.text)
    return answer == z3.unsat


_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.truediv, "%": operator.mod,
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def to_z3(formula: Formula) -> Any:
    """The formula as z3 has it. z3 divides whole numbers as ``//`` and ``%`` do where the divisor is positive."""
    import z3

    kind, parts = formula.kind, formula.parts
    if kind == "number":
        return z3.IntVal(parts[0]) if parts[1] == 1 else z3.Q(parts[0], parts[1])
    if kind == "truth":
        return z3.BoolVal(parts[0])
    if kind in ("index", "integer"):
        return z3.Int(f"i{parts[0]}" if kind == "index" else parts[0])
    if kind == "real":
        return z3.Real(parts[0])
    inner = [to_z3(part) for part in parts]
    if kind in _BINARY:
        return _BINARY[kind](*inner)
    if kind == "floor":
        return z3.ToInt(inner[0]) if z3.is_real(inner[0]) else inner[0]
    if kind == "is_integer":
        return z3.IsInt(inner[0]) if z3.is_real(inner[0]) else z3.BoolVal(True)
    if kind == "if":
        return z3.If(*inner)
    if kind == "not":
        return z3.Not(inner[0])
    return z3.And(inner) if kind == "and" else z3.Or(inner)


# ------------------------------------------------------------------------------------------------ listed answers


@contextlib.contextmanager
def listening() -> Generator[dict[str, None]]:
    """Collects the texts of all questions that are answered with yes."""
    found: dict[str, None] = {}
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
