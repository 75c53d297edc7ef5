"""``verify``: the report on a model from one call of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifycompile.agreement.together import captured_in_job, verify_together
from verifycompile.capture import arguments_of_call, capture_model, frame_of_model, model_or_built
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.waiver import sentence_of_unused, unused, with_waivers
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.torch_interface.dynamo_backend import without_override


def verify(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """Whether ``model``, as one rank runs it on ``args`` and ``kwargs``, computes what its spec computes.

    Without a model, or with None, it is what option ``build`` makes.
    In a job of several processes every rank of the model's mesh calls it, and all get the same report.
    Nothing is executed and a mismatch raises nothing: it is in the report. ``options`` are those of the backend.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    positional, named = arguments_of_call(args, kwargs)
    with without_override(), model_or_built(model, checked) as own:
        frame = frame_of_model(own, positional, named)
        with captured_in_job(frame) as channel:
            spec, implementation = capture_model(own, positional, named, checked)
        return waived(verify_together(spec, implementation, checked, channel), checked)


def waived(report: Report, options: Options) -> Report:
    """The report with what the options waive. Raises ``UsageError`` VC311 for a waiver of something else."""
    unneeded = unused(options.waivers, (report,))
    if unneeded:
        raise UsageError("VC311", sentence_of_unused(unneeded[0]))
    return with_waivers(report, options.waivers)
