"""Whether a missing gradient is there, and the program proved, once a line of the source stops gradients no more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from verifycompile import bounds
from verifycompile.capture.implementation import STOPS
from verifycompile.cause.findings import CHECKED
from verifycompile.diagnostics.finding import Finding
from verifycompile.program import Program
from verifycompile.torch_interface.gradient_stops import Stop

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
    here = [stop for stop in stops if (stop.place.file, stop.place.line) == shown]
    for stop in (here or list(stops))[: MAX_STOPS if seconds else 0]:
        captured = bounds.attempt_capture("the capture with gradients", stops[stop], implementation.seconds)
        if not isinstance(captured, Program):
            continue
        proof = functools.partial(proves, spec, captured)
        if bounds.attempt("the proof with gradients", proof, own_seconds=seconds) is not True:
            continue
        line = f"line {stop.place.line}"
        if not stop.is_region:
            return dataclasses.replace(finding, hint=f"leave out `detach()` or `.data` at {line} {CHECKED}")
        label = f"no gradient passes what is computed from {line} on under `torch.no_grad()`"
        hint = f"compute {line} outside of `torch.no_grad()` {CHECKED}"
        return dataclasses.replace(finding, hint=hint, impl_location=stop.place, label=label, labels=())
    return finding
