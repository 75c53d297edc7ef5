"""Findings: the first module whose tensors are off while what enters it is not, forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.tensor.placement_types import Partial

from verifycompile.comparison.differences import FINAL, Differences
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.trace import Kind, definition
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation

_BEYOND, _REPLICAS, _OPEN = "VC120", "VC121", "VC213"
_INSIDE = "its outputs are beyond rounding while its inputs are not"
_BETWEEN = "what enters it is beyond rounding: it is computed by the code that calls the module"
_ALONE = "it is off by itself, also where all modules have the spec's own inputs"
_MOST = 4
"""So many modules that are off by themselves have a finding each; the others are named."""
_FORWARD = frozenset({Kind.ACTIVATION, Kind.OUTPUT, Kind.INPUT})
_BACKWARD = frozenset({Kind.ACTIVATION_GRADIENT, Kind.GRADIENT})


class Places:
    """Where a module's code and its call are. ``modules``: path -> module; ``calls``: path -> where it is called.

    ``steps``: the user's own code that makes tensors of a kind in a step.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        model: Any,
        calls: Mapping[str, SourceLocation],
        steps: Mapping[Kind, SourceLocation],
    ) -> None:
        self.steps = steps
        self._modules = modules
        self._model = model
        self._calls = calls

    def call(self, module: str) -> SourceLocation | None:
        """The line that calls the module."""
        return self._calls.get(module)

    def of(self, module: str) -> tuple[SourceLocation | None, tuple[Label, ...]]:
        """The module's own forward where the user wrote it, with its call as a label; else its call."""
        call = self._calls.get(module)
        held: Any = self._modules.get(module)
        function = type(held).forward if held is not None else self._model
        own = definition(function, module) if held is not None or not module else None
        if own is None:
            return call, ()
        labels = (Label(call, f"`{module}` is called here"),) if call is not None else ()
        return own, labels


def findings_of(
    found: Differences, places: Places, step: int, parameters: Collection[str], alone: Sequence[Judged] = ()
) -> list[Finding]:
    """The findings, the cause first; what follows from it is counted.

    ``alone``: what is off where every module has the spec's own inputs; each is a finding of its own.
    """
    beyond = [item for item in found.judged if item.exceeds]
    final = [item for item in beyond if item.kind in FINAL]
    absent = [(name, why) for name, kind, why in found.missing if kind in FINAL]
    findings: list[Finding] = []
    if beyond:
        verdict = Verdict.REFUTED if final else Verdict.UNPROVED
        culprit, what = _culprit(found.judged, beyond)
        forward = culprit.kind in _FORWARD
        others = [i for i in alone if i.module != culprit.module and (i.kind in _FORWARD) == forward]
        followers = len(beyond) - 1 - len(others)
        said: Any = {"verdict": verdict, "step": step}
        findings.append(_cause(culprit, what, found.judged, places, followers=max(0, followers), **said))
        findings += [_cause(item, _ALONE, found.judged, places, **said) for item in others[:_MOST]]
        if more := [f"`{item.module}`" for item in others[_MOST:]]:
            note = f"by themselves these are off as well: {', '.join(more)}"
            findings[-1] = findings[-1].noted(note)
    alike: dict[tuple[str, str, bool], list[str]] = {}
    for name, why in absent:
        kind, _, owner = name.partition(".")
        alike.setdefault((kind, why, owner in parameters), []).append(name)
    for (_, why, is_held), names in alike.items():
        findings.append(_absent(names, why, places, findings, is_held))
    open_tensors = [item for item in found.judged if item.layout is None]
    for item in open_tensors:
        location, labels = places.of(item.module)
        findings.append(
            Finding(
                code=_OPEN,
                severity=Severity.WARNING,
                message=f"`{item.name}` was not compared: {item.detail}",
                impl_location=location,
                labels=labels,
                output=item.name,
            )
        )
    return findings


def module_to_look_into(name: str, judged: Sequence[Judged]) -> tuple[bool, str | None]:
    """Whether a tensor is forward's, and the module whose own code computes it; None where the step does."""
    item = next((item for item in judged if item.name == name), None)
    if item is None or item.kind not in _FORWARD | _BACKWARD:
        return False, None
    forward = item.kind in _FORWARD
    # In backward the code of a module gives the gradients of its inputs, and takes those of its outputs.
    outside = ".input." in name if forward else ".output." in name
    if not outside:
        return forward, item.module
    called = {other.module for other in judged if _holds(other.module, item.module) and other.module != item.module}
    return forward, max(called, key=len, default="")


def _absent(names: Sequence[str], why: str, places: Places, findings: Sequence[Finding], is_held: bool) -> Finding:
    """Tensors of one kind. ``is_held``: whether they are of parameters that the parallel program has."""
    name, *others = names
    kind, _, owner = name.partition(".")
    location, labels = places.of(owner.rpartition(".")[0] if kind == "grad" else "")
    is_gradient = kind == "grad" and is_held
    message = f"`{name}`: {why}" + (" after backward, so that the parameter is not trained" if is_gradient else "")
    return Finding(
        code=_BEYOND if is_gradient else _OPEN,
        severity=Severity.ERROR,
        message=message,
        impl_location=None if findings else location,
        labels=() if findings else labels,
        notes=(f"nor is there {', '.join(f'`{other}`' for other in others[:_MOST])}",) if others else (),
        output=name,
        verdict=Verdict.REFUTED if is_gradient else Verdict.UNPROVED,
        followers=len(others),
    )


def _cause(
    culprit: Judged,
    what: str,
    judged: Sequence[Judged],
    places: Places,
    *,
    verdict: Verdict,
    step: int,
    followers: int = 0,
) -> Finding:
    location, labels = places.of(culprit.module)
    if what is _BETWEEN or (what is _ALONE and ".input." in culprit.name):
        location, labels = places.call(culprit.module) or location, ()
    step_place = places.steps.get(culprit.kind)
    if step_place is not None:
        location = dataclasses.replace(step_place, module=culprit.module)
    partial = _partial_before(culprit, judged)
    for item in partial:
        label = f"`{item.name}` is a {item.layout_text} here"
        place = places.call(item.module)
        labels = (*labels, *([Label(place, label)] if place is not None else ()))
    code = _REPLICAS if culprit.dissent else _BEYOND
    where = f"module `{culprit.module}`" if culprit.module else "the program itself"
    return Finding(
        code=code,
        severity=Severity.ERROR if verdict is Verdict.REFUTED else Severity.WARNING,
        message=message_of(culprit),
        impl_location=location,
        labels=labels,
        notes=(
            *_notes(culprit, what, where, step),
            *(f"`{item.name}` of module `{item.module}` is a {item.layout_text} before it" for item in partial),
        ),
        output=culprit.name,
        verdict=verdict,
        followers=followers,
    )


def _culprit(judged: Sequence[Judged], beyond: Sequence[Judged]) -> tuple[Judged, str]:
    """The tensor to blame, and what is known of what enters its module."""
    forward = [item for item in beyond if item.kind in _FORWARD]
    if forward:
        enters = {item.name: item for item in judged}
        for item in forward:
            before = [other for name, other in enters.items() if _enters(name, item.name)]
            if not any(other.exceeds for other in before):
                return item, _BETWEEN if ".input." in item.name else _INSIDE
        return forward[0], "it is the first in the order of the run"
    recomputed = [item for item in beyond if item.kind is Kind.RECOMPUTED]
    if recomputed:
        first = recomputed[0]
        entering = [item for item in recomputed if ".input." in item.name and _holds(item.module, first.module)]
        return (entering or recomputed)[
            0
        ], "forward agrees; what backward computed again differs from what forward had computed"
    backward = [item for item in beyond if item.kind is Kind.ACTIVATION_GRADIENT]
    if backward:
        return backward[0], "forward agrees; it is the first gradient in the order of backward"
    gradients = [item for item in beyond if item.kind is Kind.GRADIENT]
    if gradients:
        # Backward comes to the last module of forward first.
        last = {item.module: number for number, item in enumerate(judged) if item.kind is Kind.ACTIVATION}
        first = max(gradients, key=lambda item: last.get(item.module, -1) if item.module else -1)
        return first, "forward and the gradients of activations agree; it is the first of them in the order of backward"
    return beyond[0], "forward, backward and gradients agree"


def _partial_before(culprit: Judged, judged: Sequence[Judged]) -> list[Judged]:
    """Where the value became a sum over ranks that is not added up before it is used.

    In forward the last result of a module, in backward the first of the gradients that are such sums until the culprit.
    """
    if culprit.kind in _BACKWARD:
        return _partial_gradient_before(culprit, judged)
    if culprit.kind not in _FORWARD:
        return []
    found: list[Judged] = []
    for item in judged:
        if item.name == culprit.name:
            break
        if ".output." not in item.name:
            continue
        if _is_partial(item):
            found = [item]
        elif found and _holds(item.module, found[0].module):
            found = []
    return found


def _partial_gradient_before(culprit: Judged, judged: Sequence[Judged]) -> list[Judged]:
    found: list[Judged] = []
    for item in judged:
        if item.name == culprit.name:
            return found if culprit.kind is Kind.ACTIVATION_GRADIENT else []
        if item.kind is not Kind.ACTIVATION_GRADIENT:
            continue
        found = (found or [item]) if _is_partial(item) and not item.exceeds else []
        if culprit.kind is Kind.GRADIENT and item.module == culprit.module and ".output." in item.name:
            return found
    return []


def _is_partial(item: Judged) -> bool:
    return any(isinstance(placement, Partial) for placement in item.layout or ())


def _holds(module: str, inner: str) -> bool:
    return inner == module or inner.startswith(f"{module}.")


def _enters(name: str, output: str) -> bool:
    """Whether ``name`` is an input of the module call that ``output`` is an output of."""
    call, found, _ = output.rpartition(".output.")
    if not found:
        return name.startswith("input.") and output.startswith("output.")
    return name.startswith(f"{call}.input")


def message_of(item: Judged) -> str:
    """By how much a tensor is off, and where that is a matter of ranks, on which."""
    times = "at all" if item.ratio == float("inf") else f"{item.ratio:.3g} times what rounding explains"
    if item.dissent:
        ranks = ", ".join(map(str, item.dissent))
        return f"`{item.name}` should be the same on all ranks that hold it, and rank {ranks} differs by {times}"
    if item.ratio == float("inf"):
        return f"`{item.name}` differs from the spec's, where rounding explains no difference"
    return f"`{item.name}` differs from the spec's by {times}"


def _notes(item: Judged, what: str, where: str, step: int) -> list[str]:
    norm = item.norm or 1.0
    notes = [
        f"{where}: {what}" + (f"; first in pass {step + 1}" if step else ""),
        (
            f"|difference| / |spec| = {item.error / norm:.3g}, of which rounding explains {item.threshold / norm:.3g}; "
            f"the ranks' parts as {item.layout_text}"
        ),
    ]
    if item.fits:
        notes.append(f"it would be the spec's value as {item.fits}")
    elif item.scale is not None:
        notes.append(f"it is {item.scale:.6g} times the spec's")
    if item.dtypes[0] != item.dtypes[1]:
        notes.append(f"it is {item.dtypes[1]} where the spec has {item.dtypes[0]}")
    off = [str(rank) for rank, ratio in item.by_rank.items() if ratio > 1.0]
    if 0 < len(off) < len(item.by_rank):
        notes.append(f"ranks that are off: {', '.join(off)}")
    return notes
