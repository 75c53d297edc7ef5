"""``verify_step``: the report on a whole training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifycompile.capture.model import arguments_of_call
from verifycompile.capture.step_objects import objects_of_step
from verifycompile.capture.training_step import Arguments, CaptureError, Step, capture_step
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.graph_verification import CapturedGraphs, report_on
from verifycompile.model_verification import waived
from verifycompile.options import Options
from verifycompile.question import Provenance, Question
from verifycompile.rank_evidence import with_rank_evidence
from verifycompile.torch_interface.acting_rank import is_pretended
from verifycompile.torch_interface.mesh import has_world
from verifycompile.within_limits import within_limits

_OPTIONS = (
    "mesh", "in_placements", "param_placements", "param_names", "out_placements", "on_unproved", "time_limit",
    "memory_limit", "waivers",
)  # fmt: skip


def verify_step(
    step: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    spec: Callable[..., Any],
    model: Any = None,
    optimizer: Any = None,
    spec_model: Any = None,
    spec_optimizer: Any = None,
    **options: Any,
) -> Report:
    """Whether a training step of one rank leaves what the single-device step ``spec`` leaves.

    ``step``: forward, loss, backward, reduction of gradients, clipping and ``optimizer.step``, as it is written for a
    training loop. ``args``, ``kwargs``: what one rank passes. ``model``, ``optimizer``, ``spec_model``,
    ``spec_optimizer``: what the two functions use; by default what they refer to.
    What is compared: the results, and every parameter, buffer, gradient and tensor of optimizer state after the step.
    ``options``: ``mesh``, ``in_placements``, ``param_placements``, ``param_names``, ``out_placements``,
    ``on_unproved``, ``time_limit``, ``memory_limit`` and ``waivers``, as for ``verify``.
    Nothing is executed: the step is called three times for each rank, on tensors without memory, in this one process
    under torch's fake process group. Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = _checked(step, spec, options)
    positional, named = arguments_of_call(args, kwargs)
    own = Step(step, *objects_of_step(step, model, optimizer, ""), "the step")
    single = Step(spec, *objects_of_step(spec, spec_model, spec_optimizer, "spec_"), "the spec's step")
    try:
        captured = capture_step(own, single, Arguments(step, positional, named), checked)
    except CaptureError as error:
        return waived(_uncaptured(error, checked), checked)
    mesh = captured.root.description
    graphs = CapturedGraphs(captured.spec, captured.programs, mesh, captured.even)
    seconds = captured.spec.seconds + sum(program.seconds for program in captured.programs)
    report = within_limits(checked, seconds, lambda: report_on(graphs, checked))
    report = with_rank_evidence(report, captured.programs[0], checked)
    question = Question(Provenance.GIVEN, Provenance.ASSUMED, len(mesh.ranks))
    return waived(dataclasses.replace(report, question=question), checked)


def _checked(step: object, spec: object, options: Mapping[str, Any]) -> Options:
    for name, value in (("step", step), ("spec", spec)):
        if not callable(value) or isinstance(value, type):
            raise UsageError("VC306", f"`{name}` must be the function that makes one training step.")
    other = sorted(set(options) - set(_OPTIONS))
    if other:
        known = ", ".join(f"`{name}`" for name in _OPTIONS)
        raise UsageError("VC306", f"`verify_step` has no option `{other[0]}`; its options are {known}.")
    if has_world() and not is_pretended():
        text = "`verify_step` stands for all ranks in one process: call it under torch's fake process group."
        raise UsageError("VC306", text)
    return Options.from_mapping(options)


def _uncaptured(error: CaptureError, options: Options) -> Report:
    severity = Severity.WARNING if options.on_unproved == "warn" else Severity.ERROR
    finding = Finding("VC215", severity, f"{error.message}.", impl_location=error.location)
    return Report(verdict=Verdict.UNPROVED, findings=(finding,))
