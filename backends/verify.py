"""``torch.compile(model, backend="verify")``: compile a graph only after it is proved equal to its spec."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.backends.held_tensors import comparing_at_calls
from verifycompile.backends.operators import keep_operators, lists_operators
from verifycompile.backends.refusal import Together, refusal
from verifycompile.backends.reports import keep_report, warn_with_report
from verifycompile.backends.unverified import (
    PART,
    refuse_numbers_of_partial_sums,
    refuse_unverified_runs,
    warn_of_gradients_nobody_reduces,
    without_sums_for_python,
)
from verifycompile.backends.waivers import apply_waivers, warn_of_waived
from verifycompile.diagnostics.report import Report, noted
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Program
from verifycompile.torch_interface.communication.in_flight import without_marks
from verifycompile.torch_interface.communication.under_way import waiting_within_autograd, within_autograd
from verifycompile.torch_interface.data_parallel.buckets import give_whole_graphs_to, in_buckets
from verifycompile.torch_interface.data_parallel.outer import FIRST_FSDP, outer_of, runs_in_first_fsdp
from verifycompile.torch_interface.data_parallel.root_hooks import trace_root_hooks_where
from verifycompile.torch_interface.dtensor.sharding_decisions import sharding_decided_once
from verifycompile.torch_interface.dynamo.backend import (
    Backend,
    backend_of,
    chosen_backend,
    options_of,
    unwrapped,
)
from verifycompile.torch_interface.dynamo.collective_tracing import trace_collectives_where
from verifycompile.torch_interface.dynamo.eager_frames import accept
from verifycompile.torch_interface.dynamo.frames import Frame, frame_under_compilation
from verifycompile.torch_interface.dynamo.own_compilation import compile_directly
from verifycompile.torch_interface.dynamo.returned import (
    ReturnedLayout,
    keeping_layouts,
    ranks_before,
    returned_layout,
    telling,
)
from verifycompile.torch_interface.dynamo.whole_program import (
    hooks_around_program,
    is_whole_program,
    verify_again_where_hooks_come,
)
from verifycompile.torch_interface.errors import as_compile_error
from verifycompile.torch_interface.guards.argument_guards import verify_again_where_arguments_change
from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.guards.hook_guards import backward_hooks_around, verify_again_where_hooks_change
from verifycompile.torch_interface.guards.layout_guards import verify_again_where_layouts_change
from verifycompile.torch_interface.guards.wrapper_guards import verify_again_where_wrappers_change
from verifycompile.torch_interface.operators.shapes import keep_guards
from verifycompile.torch_interface.rank_threads.messages import send_copies
from verifycompile.torch_interface.ranks.job_store import job_store
from verifycompile.torch_interface.ranks.parallelism import has_parallelism
from verifycompile.torch_interface.training_step.saved_tensors import (
    hook_on_saved_tensors,
    verify_again_where_saving_changes,
)

if TYPE_CHECKING:
    from verifycompile.agreement.held_again import HeldAlike
    from verifycompile.capture import Results

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
        settings = Options.from_mapping(options)
        inner = _inner_backend(settings, mode)
        _verify_again_where_options_change(options)
        checked = CHECK.get()(gm, example_inputs, settings)
    except Exception as error:  # noqa: BLE001 - whatever went wrong is raised again, in a form that Dynamo never drops
        raise as_compile_error(error) from None
    report = checked.report
    if report is not None and report.is_waived:
        warn_of_waived(report)
    elif report is not None and not report:
        if report.verdict is Verdict.REFUTED or report.stops or settings.on_unproved == "error":
            raise refusal(report, checked.together, in_full=True)
        warn_with_report(report, checked.together.ranks)
    return checked.compiled_by(in_buckets(inner), gm, example_inputs)


def _verify_again_where_options_change(options: Mapping[str, Any] | None) -> None:
    """Dynamo takes a graph from before where ``options`` is the same object, whatever was written into it since."""
    known = _as_it_is(options)
    verify_again_unless([lambda _: _as_it_is(options) == known], "the options are those of when the frame was verified")


def _as_it_is(option: Any) -> Any:
    if isinstance(option, Mapping):
        return {name: _as_it_is(value) for name, value in cast("Mapping[Any, Any]", option).items()}
    return [*map(_as_it_is, cast("Sequence[Any]", option))] if isinstance(option, list | tuple) else option


@dataclasses.dataclass(frozen=True)
class CheckedGraph:
    """``report``: None where nothing could be asked, and ``unasked`` says why. ``kept``: its file in the report folder.

    ``layouts``: of the results, where they are proved. ``together``: the ranks that run this graph together.
    ``at_calls``: what is called in place of what was compiled.
    """

    report: Report | None = None
    layouts: Mapping[int, ReturnedLayout] = dataclasses.field(default_factory=dict[int, ReturnedLayout])
    unasked: str = ""
    kept: str = ""
    together: Together = dataclasses.field(default_factory=Together)
    at_calls: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda compiled: compiled

    @property
    def is_refused(self) -> bool:
        """Whether something was asked, and is neither verified nor waived."""
        return self.report is not None and not self.report and not self.report.is_waived

    def compiled_by(
        self, backend: Backend, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """The graph as ``backend`` compiles it, whose results are known by the graph after a graph break."""
        with sharding_decided_once():
            compiled: object = backend(send_copies(without_marks(gm)), within_autograd(example_inputs))
        if not callable(compiled):
            what = f"a value of type `{type(compiled).__name__}`"
            text = (
                f"the backend that compiles what was verified must return a function of the graph's inputs, not {what}."
            )
            raise as_compile_error(UsageError("VC306", text))
        called = keeping_layouts(waiting_within_autograd(compiled, example_inputs), self.layouts, self.together.ranks)
        return self.at_calls(called)


def check_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> CheckedGraph:
    """What is found out about a Dynamo graph. Call it inside a backend."""
    frame = frame_under_compilation()
    refuse_numbers_of_partial_sums(only_warns=options.on_unproved == "warn")
    if options.spec is not None:
        _require_whole_program(frame)
    verify_again_where_wrappers_change(gm, example_inputs)
    verify_again_where_hooks_change(gm, example_inputs, frame_under_compilation())
    verify_again_where_saving_changes()
    is_wrapped = outer_of(example_inputs).is_parallel
    if not is_wrapped:
        warn_of_gradients_nobody_reduces(frame, example_inputs)
    verify_again_where_layouts_change(gm, example_inputs, whole_by_default=not is_wrapped)
    parallel = has_parallelism(gm, example_inputs) or _follows_on(example_inputs)
    if not parallel and not (is_wrapped and torch.is_grad_enabled()) and not _says_what_to_prove(options):
        if runs_in_first_fsdp():
            raise UsageError("VC310", FIRST_FSDP)
        passed = _passed(gm, example_inputs, options, frame, is_wrapped=is_wrapped)
        if passed is not None:
            return passed
    _require_one_graph(frame)
    if frame.is_backward_of_torch_distributed:
        return _unasked("it is a step of torch's own backward, which has no counterpart in the spec's Python code")
    # Here, and not above: a job under the flag compiles plain models too, for which none of this is imported.
    from verifycompile.agreement.held_again import HeldAlike, held_by_program, held_numbers
    from verifycompile.agreement.together import ranks_together, verify_together
    from verifycompile.capture.numbers.constructions import verify_again_where_constructions_differ
    from verifycompile.capture.ranks.one_rank import open_places
    from verifycompile.capture.single_device.spec import READ
    from verifycompile.frontends.frame import CompiledFrame

    with CompiledFrame(gm, example_inputs).captured(options) as captured:
        spec, implementation, channel = captured.spec, captured.implementation, captured.channel
        if lists_operators():
            keep_operators(spec, implementation)
            return _unasked("its operators are listed instead")
        found = verify_together(spec, implementation, options, channel)
    if options.spec is None:
        verify_again_where_constructions_differ(frame)
    if not found and any(isinstance(value, torch.SymInt) for value in example_inputs):
        found = noted(found, _OPEN_SIZES)
    names = () if captured.results is None else captured.results.names
    only_warns = options.on_unproved == "warn"
    found = without_sums_for_python(_of_hook(found, frame), gm, implementation, names, only_warns)
    report = apply_waivers(found, options.waivers)
    log.info("%s in %.2f s", report.verdict.value, report.stats.verification_seconds)
    kept = keep_report(report)
    layouts: Mapping[int, ReturnedLayout] = {}
    if report:
        # Dynamo knows the guards of the frame's own trace; those of the spec's say where the spec is this program.
        keep_guards(spec.guards, implementation.size_values)
        if (read := spec.graph.meta.get(READ)) is not None:
            verify_again_where_arguments_change(read, frame_under_compilation(), example_inputs)
        accept(frame_under_compilation(), chosen_backend())
        assert captured.results is not None
        layouts = _layouts(implementation, captured.results, report)
    own = implementation.own
    ranks = ranks_together(implementation, channel)
    together = Together(ranks, "" if own is None else own.frame, channel)
    checked = CheckedGraph(report, layouts, kept=kept, together=together)
    if not report or own is None or channel is None or len(ranks) == 1:
        return checked
    tensors = held_by_program(implementation, own, channel.rank, example_inputs)
    numbers = held_numbers(open_places(gm, example_inputs, frame, options.in_placements or ()), ranks)
    held = [*tensors, *numbers]
    alike = HeldAlike(own.frame, frame.function, channel, ranks, held=held, values=example_inputs)
    return _holding(checked, alike, options)


def _holding(checked: CheckedGraph, held: HeldAlike, options: Options) -> CheckedGraph:
    only_warns, frame = options.on_unproved == "warn", frame_under_compilation()
    at_calls = functools.partial(comparing_at_calls, held=held, frame=frame, only_warns=only_warns)
    return dataclasses.replace(checked, at_calls=at_calls)


CHECK: contextvars.ContextVar[Callable[[torch.fx.GraphModule, Sequence[Any], Options], CheckedGraph]] = (
    contextvars.ContextVar("check", default=check_graph)
)
"""How the backend checks a graph: a job under the flag tells of it as well."""


def _passed(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options, frame: Frame, *, is_wrapped: bool
) -> CheckedGraph | None:
    """What becomes of a graph that is no part of a parallel program. None: the ranks run other graphs of ``frame``."""
    reason = _NO_GRADIENTS if is_wrapped else _NOTHING_PARALLEL
    if job_store() is None:
        return _unasked(reason)
    # Here, and not above: a job under the flag compiles plain models too, for which none of this is imported.
    from verifycompile.agreement.held_again import HeldAlike
    from verifycompile.agreement.unasked import Unasked, compared, differing, said_before, written_alike

    unasked = Unasked.of(gm, example_inputs)
    written = written_alike(unasked)
    ranks = () if is_wrapped or is_whole_program(frame.code) else ranks_before(example_inputs)
    if not ranks and written is None:
        # A parallel graph may take its results, and asks what it is.
        said = "" if is_wrapped else said_before(unasked)
        passed = _unasked(reason)
        return dataclasses.replace(passed, at_calls=functools.partial(telling, said=said)) if said else passed
    ranks = ranks if written is None else written.ranks
    found = compared(unasked, gm, example_inputs, ranks, written)
    if isinstance(found, HeldAlike):
        return _holding(_unasked(_ALIKE, ranks), found, options)
    if written is None and not found.absent and any(map(returned_layout, example_inputs)):
        return None
    report = differing(frame, ranks, found, written, only_warns=options.on_unproved == "warn")
    return CheckedGraph(apply_waivers(report, options.waivers))


def _require_one_graph(frame: Frame) -> None:
    """Raises ``UsageError`` VC305 where what the frame computes is not in one graph."""
    if hooks := backward_hooks_around(frame):
        raise UsageError("VC305", _BACKWARD_HOOKS.format(", ".join(f"`{name}`" for name in hooks)))
    if hook := hook_on_saved_tensors():
        raise UsageError("VC305", _SAVED_TENSORS.format(hook))
    if frame.makes_parameters:
        raise UsageError("VC305", _MAKES_PARAMETERS)
    if frame.is_whole_backward:
        raise UsageError("VC305", _WHOLE_BACKWARD)


def _require_whole_program(frame: Frame) -> None:
    """Raises ``UsageError`` VC305 where a spec would be compared with a part of what it says."""
    if not is_whole_program(frame.code):
        raise UsageError("VC305", PART.format(frame.function))
    if hooks := hooks_around_program():
        raise UsageError("VC305", _HOOKS.format(", ".join(f"`{name}`" for name in hooks)))
    verify_again_where_hooks_come()


_HOOKS = (
    "the module that is compiled has the hooks {}, which torch calls outside of what it compiles, and the option "
    "`spec` says what the whole program computes. Register them on an inner module, or compile a "
    "module that calls this one."
)
_WHOLE_BACKWARD = (
    "compiled autograd makes one graph of a whole backward, of all graphs and of what runs between them, which has no "
    "counterpart in the spec's Python code. Switch it off (`torch._dynamo.config.compiled_autograd`), or let it "
    "compile with another backend: the backward of each compiled graph is verified with the graph."
)
_MAKES_PARAMETERS = (
    "under `DistributedDataParallel` the model's DTensors are made of plain parameters in hooks, which torch compiles "
    "apart from the model: no compiled graph has both. Ask about the model as a whole, before it is trained: "
    "`verifycompile.verify(model, args)`."
)
_BACKWARD_HOOKS = (
    "the module that is compiled has the hooks {} for its backward, which torch calls outside of what it compiles: "
    "what they make of the gradients is in no graph. Take them away, or register hooks on parameters (`register_hook`)."
)
_SAVED_TENSORS = (
    "the frame is called under `saved_tensors_hooks`: `{}` may change the values that backward reads, and is in no "
    "graph. Call it outside of them; those of torch itself, such as `save_on_cpu`, are no obstacle."
)
_NOTHING_PARALLEL = "it holds no DTensor, mesh or collective, and runs under no data-parallel wrapper"
_ALIKE = f"{_NOTHING_PARALLEL}, and does the same on all ranks"
_NO_GRADIENTS = "it holds no DTensor, mesh or collective, and makes no gradients that its data-parallel wrapper reduces"
"""Each rank runs the single-device program on its own samples, and one of them may well evaluate alone."""
_OPEN_SIZES = (
    "torch leaves sizes of the inputs open here, as it does once a size has changed; with "
    "`torch.compile(..., dynamic=False)` each size is compiled, and proved, by itself"
)


def _unasked(reason: str, ranks: tuple[int, ...] = (0,)) -> CheckedGraph:
    """``ranks``: those that were found to run the same."""
    frame = frame_under_compilation()
    log.info(
        "`%s` (%s:%s) is not checked: %s.", frame.function, frame.code.co_filename, frame.code.co_firstlineno, reason
    )
    return CheckedGraph(unasked=reason, together=Together(ranks))


def _of_hook(report: Report, frame: Frame) -> Report:
    """``report``, which says of which hook it is where that is a frame of its own: no line of the user's is in it."""
    if frame.style is None:
        return report
    note = f"this is the {frame.function}, which torch.compile compiles alone, since what calls it runs as Python code"
    return dataclasses.replace(report, findings=tuple(finding.noted(note) for finding in report.findings))


def _layouts(implementation: Program, results: Results, report: Report) -> dict[int, ReturnedLayout]:
    """How the graph's results are laid out, by position, where that is proved."""
    if implementation.mesh is None:
        return {}
    axes = implementation.mesh.axes
    own = implementation.own
    # Ranks that differ are checked on the axes along which they run the program together.
    spoken_of = range(len(axes)) if own is None else own.axes

    def placed(found: Sequence[Placement]) -> tuple[Placement, ...]:
        if len(found) == len(axes):
            return tuple(found)
        on_axes = dict(zip(spoken_of, found, strict=True))
        return tuple(on_axes.get(axis, Replicate()) for axis in range(len(axes)))

    means = frozenset(axis for output in implementation.outputs for axis in output.outer_mean)
    return {
        position: ReturnedLayout(axes, placed(report.placements[name]), results.mesh, means, results.samples)
        for position, name in enumerate(results.names)
        if name in report.placements
    }


def _follows_on(example_inputs: Sequence[Any]) -> bool:
    """Whether a tensor enters that a graph before holds in parts."""
    layouts = map(returned_layout, example_inputs)
    return any(layout is not None and not layout.is_whole for layout in layouts)


def _is_verify(compiler: Any) -> bool:
    return unwrapped(compiler) is verify


def _inner_of(compiler: Any) -> Backend | None:
    if not _is_verify(compiler):
        return None
    return _inner_backend(Options.from_mapping(options_of(compiler)), compiler.kwargs.get("mode"))


def _only_warns(compiler: Any) -> bool:
    return (options_of(compiler) or {}).get("on_unproved") == "warn"


trace_collectives_where(_is_verify)
trace_root_hooks_where(_is_verify)
refuse_unverified_runs(
    _is_verify,
    _only_warns,
    asks=lambda compiler: _says_what_to_prove(Options.from_mapping(options_of(compiler))),
    has_spec=lambda compiler: Options.from_mapping(options_of(compiler)).spec is not None,
)
give_whole_graphs_to(verify)
compile_directly(_inner_of)


def _inner_backend(options: Options, mode: str | None) -> Backend:
    inner = backend_of(options.inner, mode)
    if unwrapped(inner) is verify:
        raise UsageError("VC306", "option `inner` must be another backend than `verify`.")
    return inner


def _says_what_to_prove(options: Options) -> bool:
    return bool(options.spec or options.mesh or options.in_placements or options.param_placements)
