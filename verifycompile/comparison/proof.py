"""A proof's assumptions beside a run: which of them the run has measured, and which stay open."""

from __future__ import annotations

from verifycompile.comparison.report import AssumptionState
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict

_OPEN = ("guard", "symbolic", "size", "captured as", "ranks, and on the others")
"""Words of assumptions that speak of other sizes or ranks than those of one run."""


def states_of(proof: Report | None, verdict: Verdict) -> tuple[tuple[AssumptionState, ...], str]:
    """The state of each assumption, and what the proof and the run say against each other."""
    if proof is None:
        return (), ""
    states = tuple(_state(text, verdict) for text in proof.assumptions)
    contradiction = ""
    if proof.verdict is Verdict.VERIFIED and verdict is Verdict.REFUTED:
        contradiction = (
            "the proof holds over the real numbers under its assumptions, and the run differs beyond rounding: an "
            "assumption does not hold, or what runs is not what was captured (kernels, dtypes, code between graphs)"
        )
    if proof.verdict is Verdict.REFUTED and verdict is Verdict.VERIFIED:
        contradiction = "the proof has an input on which the programs differ, and this run was on another one"
    return states, contradiction


def _state(text: str, verdict: Verdict) -> AssumptionState:
    if any(word in text for word in _OPEN):
        return AssumptionState(text, "open", "a run has one set of sizes and ranks")
    if verdict is Verdict.VERIFIED:
        return AssumptionState(text, "measured", "every tensor that rests on it is within its threshold on this input")
    return AssumptionState(text, "open", "the run has no clean result that rests on it")
