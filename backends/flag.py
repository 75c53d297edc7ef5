"""The backend behind ``VERIFYCOMPILE=1``: check every graph, then let the backend that the user chose compile it."""

from __future__ import annotations

import atexit
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from verifycompile.backends.autoload import (
    FLAG_VARIABLE,
    NUMBERS_VARIABLE,
    OVERRIDE,
    OVERRIDE_VARIABLE,
    WAIVERS_VARIABLE,
)
from verifycompile.backends.frames import FRAMES, failure_of, name_of, outcome_of, unchecked
from verifycompile.backends.progress import progress_of
from verifycompile.backends.refusal import refusal
from verifycompile.backends.reports import warn_with_error, warn_with_report
from verifycompile.backends.unverified import refuse_unverified_runs
from verifycompile.backends.verify import CHECK, CheckedGraph, check_graph, verify
from verifycompile.backends.waivers import waivers_of_job
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.torch_interface.data_parallel.root_hooks import trace_root_hooks_where
from verifycompile.torch_interface.dynamo.backend import chosen_backend, unwrapped
from verifycompile.torch_interface.dynamo.collective_tracing import trace_collectives_where
from verifycompile.torch_interface.dynamo.frames import frame_under_compilation
from verifycompile.torch_interface.errors import as_compile_error


def verify_first(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Proves ``gm``, then calls the backend given to ``torch.compile``. Installed as Dynamo's backend override.

    Raises ``RefinementError`` for a graph that is not verified and ``UsageError`` for one that cannot be asked about;
    with ``VERIFYCOMPILE=warn`` both are warnings.
    """
    FRAMES.has_begun = True
    chosen = chosen_backend()
    if unwrapped(chosen) is verify:
        token = CHECK.set(_checked)
        try:
            return chosen(gm, example_inputs)
        finally:
            CHECK.reset(token)
    check = _check_and_warn if os.environ.get(FLAG_VARIABLE) == "warn" else _check
    return check(gm, example_inputs).compiled_by(chosen, gm, example_inputs)


def _is_set(_: Any) -> bool:
    return os.environ.get(FLAG_VARIABLE) in ("1", "warn")


def _only_warns(_: Any) -> bool:
    return os.environ.get(FLAG_VARIABLE) == "warn"


# In a job under the flag this module is imported when `torch.compile` is first used.
if os.environ.get(OVERRIDE_VARIABLE) == OVERRIDE:
    atexit.register(FRAMES.tell_summary)
# Dynamo knows the user's backend as its compiler: with the flag set, every compilation is one to be checked.
trace_collectives_where(_is_set)
trace_root_hooks_where(_is_set)
refuse_unverified_runs(_is_set, _only_warns, checks_every_backend=True, tell=lambda frame: FRAMES.add(unchecked(frame)))


def _check(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CheckedGraph:
    try:
        checked = _checked_for_job(gm, example_inputs, _options_of_job())
    except Exception as error:  # noqa: BLE001 - whatever went wrong is raised again, in a form that Dynamo never drops
        raise as_compile_error(error) from None
    if checked.report is not None and checked.is_refused:
        raise refusal(checked.report, checked.together)
    return checked


def _check_and_warn(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CheckedGraph:
    try:
        checked = _checked_for_job(gm, example_inputs, _options_of_job(on_unproved="warn"))
    except Exception as error:  # noqa: BLE001 - the user asked to go on, and is told that nothing was verified
        warn_with_error(as_compile_error(error))
        return CheckedGraph()
    if checked.report is not None and checked.is_refused:
        if checked.report.verdict is Verdict.UNPROVED and checked.report.stops:
            raise refusal(checked.report, checked.together)
        warn_with_report(checked.report, checked.together.ranks)
    return checked


def _options_of_job(**options: Any) -> Options:
    """A job under the flag has no place for options: numbers per rank and waivers have variables and files."""
    patterns = os.environ.get(NUMBERS_VARIABLE)
    if patterns is not None:
        options["per_rank_numbers"] = [item.strip() for item in patterns.split(",") if item.strip()]
    return Options.from_mapping({**options, "waivers": waivers_of_job()})


def _with_variable(report: Report) -> Report:
    """A report in which what speaks of an option says how a job under the flag gives it."""
    return dataclasses.replace(report, findings=tuple(map(_noted, report.findings)))


def _noted(finding: Finding) -> Finding:
    if finding.code == "VC209":
        return finding.noted(_NUMBERS_NOTE)
    named = [variable for option, variable in _VARIABLES.items() if f"the option `{option}` is" in finding.message]
    return finding.noted(_SAME_NOTE.format(named[0])) if named else finding


def _checked_for_job(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> CheckedGraph:
    """``_checked``, which says how a job under the flag answers what else an option would."""
    try:
        checked = _checked(gm, example_inputs, options)
    except UsageError as error:
        if error.code != "VC307":
            raise
        raise UsageError(error.code, f"{error.message}\n{_SPEC_NOTE}") from error
    if checked.report is None:
        return checked
    return dataclasses.replace(checked, report=_with_variable(checked.report))


_VARIABLES = {"on_unproved": FLAG_VARIABLE, "per_rank_numbers": NUMBERS_VARIABLE, "waivers": WAIVERS_VARIABLE}
_SAME_NOTE = "in a job under the flag, this is said by the variable {}: set it to the same on all ranks"
_SPEC_NOTE = (
    'In a job under the flag, compile the model with it: `torch.compile(model, backend="verify", '
    'options={"spec": Model(config)})`.'
)
_NUMBERS_NOTE = (
    f"in a job under the flag, set the variable {NUMBERS_VARIABLE} to the patterns of `per_rank_numbers`, separated by "
    "commas, or to the empty text where no number is per rank"
)


def _checked(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> CheckedGraph:
    """``check_graph``, whose outcome is told in a line unless an error or a warning tells it."""
    frame, started = frame_under_compilation(), time.perf_counter()
    try:
        with progress_of(name_of(frame)):
            checked = check_graph(gm, example_inputs, options)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        # The sentence of a usage error says what is missing, and not of which frame.
        FRAMES.add(failure_of(frame, started, reason), says=isinstance(error, UsageError))
        raise
    outcome = outcome_of(frame, started, checked.report, checked.unasked, checked.kept)
    FRAMES.add(outcome, first_rank=min(checked.together.ranks), says=not checked.is_refused)
    return checked
