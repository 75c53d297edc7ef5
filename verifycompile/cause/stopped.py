"""Whether a missing gradient is there, and the program proved, once a line of the source stops gradients no more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

from verifycompile import bounds
from verifycompile.capture.implementation import STOPS
from verifycompile.cause.draft import Draft
from verifycompile.cause.findings import CHECKED
from verifycompile.diagnostics.finding import Finding
from verifycompile.errors import UsageError
from verifycompile.program import Program
from verifycompile.torch_interface.dynamo.gradient_stops import Stop
from verifycompile.torch_interface.ranks.rank_values import functional_collectives
from verifycompile.torch_interface.source_lines.value_names import is_backward

MAX_STOPS = 3
"""So many lines are tried: each takes another capture."""


def with_gradients_passed(
    finding: Finding,
    spec: Program,
    implementation: Program,
    proves: Callable[[Program, Program], bool],
    seconds: float,
) -> Finding:
    """The finding, of a gradient that does not reach its input, with the line that has to let gradients pass.

    ``seconds``: so long the proof of a program without a stop may take.
    """
    stops: Mapping[Stop, Callable[[], Program]] = implementation.graph.meta.get(STOPS, {})
    place = finding.impl_location
    shown = None if place is None else (place.file, place.line)
    ordered = sorted(stops, key=lambda stop: (stop.place.file, stop.place.line) != shown)
    for stop in ordered[: MAX_STOPS if seconds else 0]:
        try:
            captured = bounds.attempt_capture("the capture with gradients", stops[stop], implementation.seconds)
        except UsageError:  # torch has no gradient of what is behind it
            continue
        if not isinstance(captured, Program):
            return finding.noted(captured.describe())
        for program, way in _ways(captured):
            proof = functools.partial(proves, spec, program)
            if bounds.attempt("the proof with gradients", proof, own_seconds=seconds) is True:
                return _told(finding, stop, way, is_here=(stop.place.file, stop.place.line) == shown)
    return finding


def _ways(captured: Program) -> Iterator[tuple[Program, str]]:
    """The program, and it with an all-reduce in its backward pass left out: how an all-reduce passes gradients on is
    another question than whether they reach it.
    """
    yield captured, ""
    draft, name = Draft(captured), functional_collectives().all_reduce.default
    reductions = [node for node in draft.nodes.values() if node.target is name and is_backward(node)]
    for node in reductions[:MAX_STOPS]:
        mark = draft.mark()
        draft.redirect(node, node.all_input_nodes[0])
        yield draft.program, ", and let its gradient pass the all-reduce behind it as it is"
        draft.undo(mark)


def _told(finding: Finding, stop: Stop, way: str, *, is_here: bool) -> Finding:
    line = f"line {stop.place.line}"
    if stop.is_region:
        label = f"no gradient passes what is computed from {line} on under `torch.no_grad()`"
        hint = f"compute {line} outside of `torch.no_grad()`{way} {CHECKED}"
        return dataclasses.replace(finding, hint=hint, impl_location=stop.place, label=label, labels=())
    hinted = dataclasses.replace(finding, hint=f"leave out `detach()` or `.data` at {line}{way} {CHECKED}")
    if is_here:
        return hinted
    label = f"no gradient passes what is detached at {line}"
    return dataclasses.replace(hinted, message=label, impl_location=stop.place, label=label, labels=())
