"""Questions to z3: each is asked once, and what it leaves open is not proved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import z3

from verifycompile.ir.size import Size

# z3 decides these linear integer questions in a few milliseconds; the limit keeps a hard one from stalling.
_TIMEOUT_MILLISECONDS = 500

_answers: dict[str, bool] = {}
_durations: list[float] = []


def holds(claim: Any, indices: Mapping[int, Any], shape: tuple[Size, ...]) -> bool:
    """Whether z3 proves ``claim`` for all values of its variables and all indices within their dimensions."""
    started = time.perf_counter()
    solver = z3.Solver()
    solver.set("timeout", _TIMEOUT_MILLISECONDS)
    for dim, variable in indices.items():
        size = shape[dim]
        solver.add(variable >= 0)
        if isinstance(size, int):
            solver.add(variable < size)
    solver.add(z3.Not(claim))
    question = solver.sexpr()
    known = _answers.get(question)
    if known is None:
        known = _ask(solver, question)
    _durations.append(time.perf_counter() - started)
    return known


def _ask(solver: Any, question: str) -> bool:
    try:
        answer = solver.check()
    except z3.Z3Exception:
        return False
    if answer != z3.unknown:  # an answer that took too long may be found the next time
        _answers[question] = answer == z3.unsat
    return answer == z3.unsat


def take_durations() -> list[float]:
    """Seconds of every question since the last call."""
    taken = list(_durations)
    _durations.clear()
    return taken
