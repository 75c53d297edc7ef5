"""A proof beside a run: for each assumption whether the run has measured it, and what both say against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch.distributed.tensor.placement_types import Placement

from verifycompile.assumption import Assumption, AssumptionKind, kind_of
from verifycompile.comparison.differences import FINAL
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.report import AssumptionState
from verifycompile.comparison.trace import Kind
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import Mesh

_OPEN: Mapping[AssumptionKind, str] = {
    AssumptionKind.SIZES: "a run has one set of sizes",
    AssumptionKind.CONSUMER: "what reads the result comes after the run",
    AssumptionKind.LATER: "a later call is none of this run",
    AssumptionKind.UNCOMPARED: "it has no counterpart in the spec",
    AssumptionKind.OTHER: "no run can tell",
}
"""What no run measures, and why."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a run can say of an assumption.

    ``tensors``: all that were compared. ``own_models``, ``own_inputs``: whether each rank had made its own model, and
    passed its own inputs. ``spec_given``: whether the spec was none that the comparison recovered.
    """

    tensors: Sequence[Judged]
    verdict: Verdict
    own_models: bool
    own_inputs: bool
    spec_given: bool


def states_of(proof: Report | None, run: Measured) -> tuple[tuple[AssumptionState, ...], str]:
    """The state of each assumption, and what the proof and the run say against each other."""
    if proof is None:
        return (), ""
    contradiction = ""
    if proof.verdict is Verdict.VERIFIED and run.verdict is Verdict.REFUTED:
        contradiction = (
            "the proof holds over the real numbers under its assumptions, and the run differs beyond rounding: an "
            "assumption does not hold, or what runs is not what was captured (kernels, dtypes, code between graphs)"
        )
    if proof.verdict is Verdict.REFUTED and run.verdict is Verdict.VERIFIED:
        contradiction = "the proof has an input on which the programs differ, and this run was on another one"
    states = (*_proved(proof, run), *(_state(text, run) for text in proof.assumptions))
    return states, contradiction


def layouts_of(proof: Report | None, mesh: Mesh) -> dict[str, tuple[Placement, ...]]:
    """How the program's results lie, as it was proved, where that is over the axes of this mesh."""
    if proof is None or proof.verdict is not Verdict.VERIFIED:
        return {}
    return {name: layout for name, layout in proof.placements.items() if len(layout) == len(mesh.axes)}


def _proved(proof: Report, run: Measured) -> list[AssumptionState]:
    """What needs no run: the relations, which the run has measured as well."""
    if proof.verdict is not Verdict.VERIFIED:
        return []
    names = [name for name in proof.relations if not name.startswith("grad.")]
    gradients = len(proof.relations) - len(names)
    listed = [f"`{name}`" for name in names]
    if gradients:
        listed.append(f"{gradients} gradient{'s' if gradients > 1 else ''}")
    both = [item for item in run.tensors if item.name in proof.relations]
    text = f"over the real numbers {', '.join(listed)} are the spec's"
    return [AssumptionState(text, "proved", f"on this run {_said(both)}" if both else "none of them was compared")]


def _state(text: str, run: Measured) -> AssumptionState:
    kind, resting = kind_of(text), _resting(text, run.tensors)
    why = _OPEN.get(kind, "")
    if kind is AssumptionKind.RANKS and not run.own_models:
        why = "this run gave every rank a copy of one model too"
    own = run.own_inputs if any(item.kind is Kind.INPUT for item in resting) else run.own_models
    if kind is AssumptionKind.PLACEMENT and not own:
        why = "this run gave every rank its part itself"
    if kind is AssumptionKind.NUMBER and not run.spec_given:
        why = "the spec of this run was recovered from the same model"
    if not resting:
        why = why or "no tensor that rests on it was compared"
    beyond = [item for item in resting if item.exceeds]
    if beyond and not why:
        worst = max(beyond, key=lambda item: item.ratio)
        why = f"it may not hold: `{worst.name}` is off by {worst.ratio:.2g} times what rounding explains"
    return AssumptionState(text, "open", why) if why else AssumptionState(text, "measured", _said(resting))


def _resting(text: str, tensors: Sequence[Judged]) -> list[Judged]:
    """The tensors that an assumption speaks of, or else all that the spec ends with."""
    names = set(text.names) if isinstance(text, Assumption) else set[str]()
    own = [item for item in tensors if names & {item.name, item.name.partition(".")[2]}]
    return own or [item for item in tensors if item.kind in FINAL]


def _said(tensors: Sequence[Judged]) -> str:
    largest = max((item.ratio for item in tensors), default=0.0)
    what = f"`{tensors[0].name}` is off by" if len(tensors) == 1 else f"{len(tensors)} tensors are off by at most"
    return f"{what} {largest:.2g} times what rounding explains"
