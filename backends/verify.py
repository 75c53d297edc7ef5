"""``torch.compile(model, backend="verify")``: compile a graph only after it is proved equal to its spec."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.backends.reports import keep_report, warn_with_report
from verifycompile.capture import capture_implementation, has_parallelism, recover_spec, with_unwritten
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.rank_verification import verify_captured
from verifycompile.torch_interface.buckets import give_whole_graphs_to, in_buckets
from verifycompile.torch_interface.collective_tracing import trace_collectives_where
from verifycompile.torch_interface.dynamo import frame_under_compilation
from verifycompile.torch_interface.dynamo_backend import Backend, backend_of, unwrapped, without_override
from verifycompile.torch_interface.errors import RefinementError, as_compile_error
from verifycompile.torch_interface.in_flight import without_marks

log = logging.getLogger(__name__)


def verify(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: proves that ``gm`` refines its spec, then hands it to the inner backend.

    ``options`` are those of ``verifycompile.Options``; ``mode`` goes to the inner backend. A graph without
    parallelism is handed over at once, unless an option says what to prove about it.
    Raises ``RefinementError`` for a graph that is refuted or unproved, ``UsageError`` for an incomplete question.
    """
    try:
        checked = Options.from_mapping(options)
        inner = _inner_backend(checked, mode)
        report = report_on(gm, example_inputs, checked)
    except Exception as error:  # noqa: BLE001 - whatever went wrong is raised again, in a form that Dynamo never drops
        raise as_compile_error(error) from None
    if report is not None and not report:
        if report.verdict is Verdict.REFUTED or checked.on_unproved == "error":
            raise RefinementError(report)
        warn_with_report(report)
    return in_buckets(inner)(without_marks(gm), example_inputs)


def report_on(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> Report | None:
    """The report on a Dynamo graph, or None where there is nothing parallel to check. Call it inside a backend."""
    if not _says_what_to_prove(options) and not has_parallelism(gm, example_inputs):
        log.debug("no DTensor, mesh or collective: the graph is passed on")
        return None
    if frame_under_compilation().is_backward_of_torch_distributed:
        log.debug("a step of a backward that runs eagerly: it has no counterpart in the spec's Python code")
        return None
    with without_override():
        implementation = capture_implementation(gm, example_inputs, options)
        spec = recover_spec(options, implementation)
        implementation = with_unwritten(spec, implementation)
    report = verify_captured(spec, implementation, options)
    log.info("%s in %.2f s", report.verdict.value, report.stats.verification_seconds)
    keep_report(report)
    return report


trace_collectives_where(lambda compiler: unwrapped(compiler) is verify)
give_whole_graphs_to(verify)


def _inner_backend(options: Options, mode: str | None) -> Backend:
    inner = backend_of(options.inner, mode)
    if unwrapped(inner) is verify:
        raise UsageError("VC306", "option `inner` must be another backend than `verify`.")
    return inner


def _says_what_to_prove(options: Options) -> bool:
    return bool(options.spec or options.mesh or options.in_placements or options.param_placements)
