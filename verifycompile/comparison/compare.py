"""``compare``: TTrace's method as a third opinion on a program: both programs are run and compared tensor by tensor."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor.placement_types import Partial, Replicate

from verifycompile.comparison.alone import faults, parts_of_the_spec
from verifycompile.comparison.differences import FINAL, Comparing, scales_of
from verifycompile.comparison.inputs import Inputs, make_inputs
from verifycompile.comparison.judge import Judged, Subject
from verifycompile.comparison.layout import part_of
from verifycompile.comparison.lines import at_line, first_line_off
from verifycompile.comparison.localize import Places, findings_of, forward_of
from verifycompile.comparison.names import Call, call_of, inner_model, named_modules, named_tensors
from verifycompile.comparison.parameters import Parameters, by_name, gather, spread
from verifycompile.comparison.programs import (
    Spec,
    copied_spec,
    copy_for_rank,
    dtypes_of_wrappers,
    layout_over,
    needs_a_model_for_each_rank,
    recovered_spec,
    root_of_program,
    wrapped_axes,
)
from verifycompile.comparison.proof import states_of
from verifycompile.comparison.ranks import InTheJob, InThisProcess, RankFailedError, Ranks, errors_of_ranks
from verifycompile.comparison.reference import Reference, pass_name
from verifycompile.comparison.report import CompareReport
from verifycompile.comparison.threshold import epsilon_of, norm_of
from verifycompile.comparison.trace import Kind
from verifycompile.comparison.worker import Clip, Optimizer, Ran, Training, Worker
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.acting_rank import groups_of_its_own, is_pretended
from verifycompile.torch_interface.mesh import RootMesh, has_world
from verifycompile.torch_interface.observation import ReadKind, rank_reads_ignored, reads
from verifycompile.torch_interface.ranks_in_threads import RanksInThreads, RanksWaitError

_FORWARD = frozenset({Kind.INPUT, Kind.ACTIVATION, Kind.OUTPUT})
_BACKWARD = frozenset({Kind.ACTIVATION_GRADIENT, Kind.GRADIENT, Kind.BUFFER})
_STEP = frozenset({Kind.PARAMETER, Kind.STATE})
_RANDOM = "random numbers were drawn: all streams begin alike, but a rank's draws for a part are not the spec's"


def compare(
    model: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    batches: Sequence[Sequence[Any]] | None = None,
    optimizer: Optimizer | None = None,
    spec_optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    spec_clip: Clip | None = None,
    steps: int = 1,
    accumulation: int = 1,
    seeds: int = 2,
    seed: int = 0,
    proof: Report | None = None,
    **options: Any,
) -> CompareReport:
    """Run ``model`` on all ranks and its spec on one device, and compare every related tensor.

    In a job of several processes every rank calls it and all get the same report; one process that stands for all
    ranks runs each of them in a thread. ``optimizer``: makes an optimizer of parameters (``torch.optim.AdamW``); with
    it ``steps`` steps of training are compared, each after ``accumulation`` passes whose gradients add up. ``clip``:
    what is done to the gradients of parameters before a step (``lambda p: clip_grad_norm_(p, 1.0)``).
    ``batches``: positional arguments of each pass in turn, in the place of ``args``, which all passes have else.
    ``spec_optimizer``, ``spec_clip``: the spec's, where they are others. ``seeds``: perturbed runs of the spec for each
    tolerance. ``seed``: of all random numbers. ``proof``: the report of ``verify``, whose assumptions are told apart by
    what this run measured. ``options`` are those of ``verify``.
    Nothing of the model is changed: hooks are removed, and its values, gradients and buffers are put back.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    checked = Options.from_mapping(options)
    if model is None and checked.build is None:
        raise UsageError("VC306", "there is nothing to compare: pass a model, or the option `build` that makes it.")
    if batches is not None and (not batches or args):
        raise UsageError("VC306", "option `batches` is a list of the arguments of each pass, in the place of `args`.")
    trains = {"batches": batches is not None and len(batches) > 1, "steps": steps != 1,
              "accumulation": accumulation != 1, "clip": clip is not None, "spec_clip": spec_clip is not None,
              "spec_optimizer": spec_optimizer is not None}  # fmt: skip
    useless = [name for name, given in trains.items() if given and optimizer is None]
    if useless:
        raise UsageError("VC310", f"option `{useless[0]}` does not apply: there is no `optimizer`.")
    if min(steps, accumulation) < 1:
        raise UsageError("VC306", "options `steps` and `accumulation` must be whole numbers greater than zero.")
    training = Training() if optimizer is None else Training(optimizer, clip, steps, accumulation)
    spec_training = dataclasses.replace(training, optimizer=spec_optimizer or optimizer, clip=spec_clip or clip)
    each = [tuple(args)] if batches is None else [tuple(batch) for batch in batches]
    question = _Question(model, each, dict(kwargs or {}), checked, training, spec_training, seeds, seed, proof)
    with torch.enable_grad():
        if has_world() and not is_pretended():
            return question.in_the_job()
        return question.in_this_process()


@dataclasses.dataclass
class _Question:
    """What is compared; ``assumptions`` and ``notes`` are what the report will say of it."""

    model: Callable[..., Any] | None
    args: list[tuple[Any, ...]]
    kwargs: dict[str, Any]
    options: Options
    training: Training
    spec_training: Training
    seeds: int
    seed: int
    proof: Report | None
    assumptions: list[str] = dataclasses.field(default_factory=list[str])
    notes: list[str] = dataclasses.field(default_factory=list[str])
    started: float = dataclasses.field(default_factory=time.perf_counter)

    def _worker(self, model: Any, root: RootMesh | None) -> Worker:
        calls = [call_of(model, args, self.kwargs) for args in self.args]
        return Worker(model, self.options.param_names, layout_over(root), calls, training=self.training)

    def in_this_process(self) -> CompareReport:
        """With a thread for each rank."""
        options = self.options
        held = tuple(value for value in (self.model, options.build) if value is not None)
        root = root_of_program(held, options)
        threads = RanksInThreads(root, self.seed)
        alone = len(threads.ranks) == 1
        if not alone and options.build is None:
            asked = tuple(dict.fromkeys(str(r) for r in reads(ReadKind.RANK) if not r.traced and not r.installed))
            refused = _one_object(asked, needs_a_model_for_each_rank(self.model))
            if refused is not None:
                return CompareReport(Verdict.UNPROVED, (refused,), ranks=len(threads.ranks))

        def make(_: int) -> Worker:
            if options.build is not None:
                return self._worker(options.build(), root)
            return self._worker(self.model if alone else copy_for_rank(self.model), root)

        with rank_reads_ignored(), groups_of_its_own() if is_pretended() else contextlib.nullcontext():
            try:
                with errors_of_ranks():
                    ranks = InThisProcess(threads, make)
                own = None if alone or options.build is not None else threads.ranks[0]
                return self._report(ranks, ranks.worker(threads.ranks[0]).model, root, own)
            except (RankFailedError, RanksWaitError) as error:
                return _failed(error, len(threads.ranks))

    def in_the_job(self) -> CompareReport:
        """On this job's own ranks: the first one leads."""
        model = self.model if self.model is not None else _built(self.options)
        root = root_of_program((model,), self.options)
        ranks = InTheJob(lambda _: self._worker(model, root))
        try:
            if not ranks.leads:
                result = ranks.follow()
            else:
                result = self._led(ranks, model, root)
                ranks.dismiss(result)
        finally:
            ranks.close()
        if isinstance(result, UsageError):
            raise result
        return result

    def _led(self, ranks: InTheJob, model: Any, root: RootMesh | None) -> CompareReport | UsageError:
        try:
            return self._report(ranks, model, root, None)
        except RankFailedError as error:
            return _failed(error, len(ranks.ranks))
        except UsageError as error:
            return error

    def _report(self, ranks: Ranks, model: Any, root: RootMesh | None, own: int | None) -> CompareReport:
        mesh = root.description if root is not None else Mesh((MeshAxis("rank", 1),), (0,))
        with _state_kept(ranks):
            return self._compared(ranks, model, mesh, root, own)

    def _compared(self, ranks: Ranks, model: Any, mesh: Mesh, root: RootMesh | None, own: int | None) -> CompareReport:
        options = self.options
        spec = None if options.spec is None else copied_spec(options.spec)
        entries = by_name(ranks.call("parameters"))
        held = None if spec is None else named_tensors(spec.model, {})
        if own is None:
            parameters = gather(ranks, mesh, entries, held, options)
        else:
            parameters = spread(ranks, mesh, entries, held, options, own_rank=own, seed=self.seed)
            ranks.call("save")
        # What other ranks pass is known in a running job alone.
        first, *others = ranks.ranks
        passed = first if is_pretended() and others else own
        wrapped, each = wrapped_axes(model, root), list[Inputs]()
        for turn in range(len(self.args)):
            ranks.call("turn", turn)
            each.append(make_inputs(ranks, mesh, options, wrapped=wrapped, own=passed, seed=self.seed + turn))
        ranks.call("turn", 0)
        differ = dict.fromkeys(name for one in each for name in one.differ)
        inputs = dataclasses.replace(each[0], differ=tuple(differ))
        spec = spec or recovered_spec(model, named_tensors(model, options.param_names), parameters.whole)
        _assign(spec, parameters)
        self._describe(parameters, inputs, spec, own)
        early = _replicas(parameters, inputs)
        reference = self._reference(spec, each)
        epsilons = (
            epsilon_of(t.dtype for t in (*named_tensors(spec.model, {}).values(), *inputs.whole.values())),
            epsilon_of(
                (*(e.dtype for by in entries.values() for e in by.values()),
                 *(t.dtype for t in inputs.whole.values()), *dtypes_of_wrappers(model))
            ),
        )  # fmt: skip
        thresholds = self._thresholds(reference, epsilons)
        layouts = {**parameters.layouts, **{f"input.{name}": value for name, value in inputs.layouts.items()}}
        comparing = Comparing(ranks, reference, thresholds, layouts, mesh, options)
        with errors_of_ranks():
            departed, drew = self._run(ranks, reference, comparing, mesh)
        calls = ranks.call("places")[first]
        inner = inner_model(model)
        places = Places(named_modules(model), inner, calls)
        alone = self._each_alone(ranks, comparing, mesh) if departed == 0 else []
        causes = findings_of(comparing.found, places, departed, parameters.whole, alone)
        if departed == 0 and causes:
            causes[0] = self._at_line(causes[0], ranks, comparing, epsilons)
        findings = [*early, *causes]
        doubts = self._doubts(spec, parameters, drew=drew or reference.drew)
        if findings and doubts:
            self.notes += doubts
            findings = [_undecided(finding) for finding in findings]
        return self._finished(findings, comparing, ranks, epsilons)

    def _doubts(self, spec: Spec, parameters: Parameters, *, drew: bool) -> list[str]:
        """Why a difference need not be one of the programs."""
        doubts = [_RANDOM] if drew else []
        if spec.doubt and len(parameters.sharded()) > 0:
            doubts.append(f"{spec.doubt}: pass the option `spec`, and a difference is certain")
        own = {name for name, t in named_tensors(spec.model, {}).items() if isinstance(t, torch.nn.Parameter)}
        lacking, extra = sorted(own - set(parameters.whole)), sorted(set(parameters.whole) - own)
        extra = [name for name in extra if name not in named_tensors(spec.model, {})]
        if lacking and extra:
            doubts.append(
                f"the spec's parameter `{lacking[0]}` has no counterpart, nor has the program's `{extra[0]}`: their "
                "values are not related. Say which is which with the option `param_names`"
            )
        return doubts

    def _reference(self, spec: Spec, each: Sequence[Inputs]) -> Reference:
        calls = [self._call_of_spec(spec, *both) for both in zip(self.args, each, strict=True)]
        reference = Reference(spec.model, calls, self.spec_training, self.seed)
        try:
            reference.run()
        except Exception as error:
            code = "VC303" if self.options.spec is not None else "VC307"
            what = "does not run on these inputs" if self.options.spec is not None else "cannot be recovered: it does "
            what += "" if self.options.spec is not None else "not run on whole tensors. Pass it as the option `spec`"
            raise UsageError(code, f"the spec {what}.\n{type(error).__name__}: {error}") from error
        return reference

    def _call_of_spec(self, spec: Spec, args: tuple[Any, ...], inputs: Inputs) -> Call:
        template = call_of(spec.model, args, self.kwargs)
        if set(template.names) != set(inputs.whole):
            template = _by_position(template, inputs)
        return template.with_tensors(
            lambda name, tensor: inputs.whole[name].detach().clone().requires_grad_(tensor.requires_grad)
        )

    def _thresholds(self, reference: Reference, epsilons: tuple[float, float]) -> dict[str, float]:
        """The sum of the responses at both machine epsilons: each program is off by its own rounding."""
        total: dict[str, float] = {}
        found = {epsilon: reference.responses(epsilon, self.seeds) for epsilon in set(epsilons) if epsilon}
        for epsilon in epsilons:
            for name, response in found.get(epsilon, {}).items():
                total[name] = total.get(name, 0.0) + response
        for name, value in reference.values.items():
            if value.is_floating_point():
                # The response to an error of the tensor itself, which the few numbers drawn for a scalar may miss.
                total[name] = max(total.get(name, 0.0), sum(epsilons) * norm_of(value))
        return total

    def _run(self, ranks: Ranks, reference: Reference, comparing: Comparing, mesh: Mesh) -> tuple[int, bool]:
        """Run the parallel program; returns the pass that departed first, and whether random numbers were drawn."""
        drew = False
        ranks.call("begin", self.seed)
        for step in range(self.training.all_passes):
            if len(self.args) > 1:
                ranks.call("turn", step)
            ran: dict[int, Ran] = ranks.call("forward")
            drew = drew or any(one.drew for one in ran.values())
            comparing.take(ran, _FORWARD, step)
            outputs = [item for item in comparing.found.judged if item.kind is Kind.OUTPUT]
            comparing.scales = scales_of(outputs, mesh)
            back: dict[int, Ran] = ranks.call(
                "backward", each=_cotangents(ran, reference.cotangents[step], outputs, mesh, step)
            )
            drew = drew or any(one.drew for one in back.values())
            comparing.take(back, _BACKWARD, step)
            if self.training.steps_after(step):
                comparing.take(ranks.call("step"), _STEP, step)
            if any(item.exceeds and item.kind in FINAL for item in comparing.found.judged):
                return step, drew
        return 0, drew

    def _each_alone(self, ranks: Ranks, comparing: Comparing, mesh: Mesh) -> list[Judged]:
        """What is off where every module has the spec's own inputs, after a run in which something was off."""
        if not any(item.exceeds for item in comparing.found.judged):
            return []
        reference = comparing.reference
        gradients = not comparing.scales
        parts = parts_of_the_spec(comparing.found.judged, reference, ranks.ranks, mesh, gradients=gradients)
        alone = Comparing(
            ranks, reference, comparing.thresholds, comparing.layouts, mesh, self.options, scales=comparing.scales
        )
        ranks.call("begin", self.seed)
        try:
            with errors_of_ranks():
                ran: dict[int, Ran] = ranks.call("forward", each=parts)
                alone.take(ran, _FORWARD, 0)
                outputs = [item for item in comparing.found.judged if item.kind is Kind.OUTPUT]
                back = ranks.call("backward", each=_cotangents(ran, reference.cotangents[0], outputs, mesh, 0))
                alone.take(back, _BACKWARD, 0)
        except RankFailedError as error:
            self.notes.append(f"no module was judged alone: the program does not run on the spec's tensors ({error})")
            return []
        return faults(alone.found.judged)

    def _at_line(self, finding: Finding, ranks: Ranks, comparing: Comparing, epsilons: tuple[float, float]) -> Finding:
        """The finding at the line inside of a forward that is off, where both programs call the same functions."""
        path = forward_of(finding.output, comparing.found.judged)
        if path is None:
            return finding
        known = comparing.reference
        reference = Reference(known.worker.model, known.calls[:1], self.spec_training, self.seed, within=path)
        reference.run()
        thresholds = self._thresholds(reference, epsilons)
        ranks.call("begin", self.seed)
        try:
            with errors_of_ranks():
                ran: dict[int, Ran] = ranks.call("operations", path)
        except RankFailedError:
            return finding

        def subject(name: str) -> Subject:
            return Subject(name, Kind.ACTIVATION, path, reference.values[name], thresholds.get(name, 0.0))

        entries = {rank: one.entries for rank, one in ran.items()}
        found = first_line_off(
            reference.entries, entries, subject, lambda name: ranks.call("value", name), mesh=comparing.mesh
        )
        ranks.call("drop")
        return finding if found is None else at_line(finding, *found)

    def _describe(self, parameters: Parameters, inputs: Inputs, spec: Spec, own: int | None) -> None:
        self.assumptions += [*spec.assumptions, *inputs.assumptions]
        for name in parameters.inferred:
            self.assumptions.append(f"`{name}` is placed as its shapes alone say")
        self.notes.append(f"all random streams begin with seed {self.seed}, on every rank and in the spec")
        if own is not None:
            self.notes.append("the parallel parameters are parts of the spec's values")

    def _finished(
        self, findings: list[Finding], comparing: Comparing, ranks: Ranks, epsilons: tuple[float, float]
    ) -> CompareReport:
        found = comparing.found
        refuted = any(finding.verdict is Verdict.REFUTED for finding in findings)
        verdict = Verdict.REFUTED if refuted else Verdict.UNPROVED if findings else Verdict.VERIFIED
        if not any(item.kind in FINAL for item in found.judged) and not refuted:
            verdict = Verdict.UNPROVED
        notes = [*self.notes, *_precision_notes(found.judged)]
        states, contradiction = states_of(self.proof, verdict)
        return CompareReport(
            verdict=verdict,
            findings=tuple(findings),
            tensors=tuple(found.judged),
            not_compared=tuple((name, why) for name, _, why in found.missing),
            notes=tuple(notes),
            assumptions=tuple(dict.fromkeys(self.assumptions)),
            how=ranks.how,
            ranks=len(ranks.ranks),
            epsilons=epsilons,
            seeds=self.seeds,
            steps=self.training.steps,
            seconds=time.perf_counter() - self.started,
            proof=states,
            contradiction=contradiction,
        )


@contextlib.contextmanager
def _state_kept(ranks: Ranks) -> Generator[None]:
    """While entered, the program may be run; afterwards values, gradients and buffers are as before."""
    ranks.call("save")
    try:
        yield
    finally:
        ranks.call("restore")


def _built(options: Options) -> Any:
    assert options.build is not None
    return options.build()


def _assign(spec: Spec, parameters: Parameters) -> None:
    with torch.no_grad():
        for name, tensor in named_tensors(spec.model, {}).items():
            value = parameters.whole.get(name)
            if value is not None and value.shape == tensor.shape:
                tensor.copy_(value)


def _by_position(template: Call, inputs: Inputs) -> Call:
    """The spec's call where its parameters have other names: tensors in the same order."""
    if len(template.names) != len(inputs.whole):
        raise UsageError("VC303", "the spec does not take as many tensors as the model does.")
    names = dict(zip(inputs.whole, template.names.values(), strict=True))
    return Call(template.args, template.kwargs, names)


def _cotangents(
    ran: Mapping[int, Ran], whole: Mapping[int, torch.Tensor], outputs: Sequence[Judged], mesh: Mesh, step: int
) -> dict[int, tuple[dict[int, torch.Tensor]]]:
    """Each rank's parts: the shard where an output is sharded, all of it where it is replicated or partial."""
    judged = {item.name: item for item in outputs}
    each: dict[int, tuple[dict[int, torch.Tensor]]] = {}
    for rank, one in ran.items():
        own: dict[int, torch.Tensor] = {}
        held = {entry.name for entry in one.entries} | set(one.aliases)
        for index, cotangent in whole.items():
            item = judged.get(pass_name(step, f"output.{index}"))
            if item is None or item.layout is None or f"output.{index}" not in held:
                continue
            layout = tuple(Replicate() if isinstance(p, Partial) else p for p in item.layout)
            own[index] = part_of(cotangent, layout, rank, mesh).contiguous()
        each[rank] = (own,)
    return each


def _replicas(parameters: Parameters, inputs: Inputs) -> list[Finding]:
    """Findings on what the ranks hold before anything is run."""
    found = [
        Finding(
            code="VC121",
            severity=Severity.ERROR,
            message=f"parameter `{name}` should be the same on all ranks that hold it, and rank "
            f"{', '.join(map(str, others))} holds other values before the program runs",
            output=name,
            verdict=Verdict.REFUTED,
        )
        for name, others in parameters.differ.items()
    ]
    for name in inputs.differ:
        message = f"input `{name}` differs between ranks that are taken to have the same one: give `in_placements`"
        found.append(Finding(code="VC213", severity=Severity.ERROR, message=message, output=name))
    return found


def _one_object(asked: tuple[str, ...], wrapped: bool) -> Finding | None:
    """Why one process's model cannot stand for those of the other ranks."""
    if not asked and not wrapped:
        return None
    why = f"the program asked for its rank: {', '.join(asked[:3])}" if asked else "a data-parallel wrapper keeps state"
    message = (
        f"{why}. This process alone stands for all ranks, whose models may hold other numbers. Pass the option "
        "`build`, a callable without arguments that makes the model: it is called once for each rank."
    )
    return Finding(code="VC207", severity=Severity.ERROR, message=message)


def _failed(error: Exception, ranks: int) -> CompareReport:
    finding = Finding(code="VC214", severity=Severity.ERROR, message=f"the parallel program does not end: {error}")
    return CompareReport(Verdict.UNPROVED, (finding,), ranks=ranks)


def _undecided(finding: Finding) -> Finding:
    return dataclasses.replace(finding, verdict=Verdict.UNPROVED, severity=Severity.WARNING)


def _precision_notes(judged: Sequence[Judged]) -> list[str]:
    """Where the parallel program has a coarser dtype than the spec, within what rounding explains."""
    notes: list[str] = []
    for item in judged:
        spec, own = (getattr(torch, name, None) for name in item.dtypes)
        if not isinstance(spec, torch.dtype) or not isinstance(own, torch.dtype) or item.exceeds:
            continue
        if spec.is_floating_point and own.is_floating_point and torch.finfo(own).eps > torch.finfo(spec).eps:
            size = item.error / (item.norm or 1.0)
            own_dtype, spec_dtype = item.dtypes[1], item.dtypes[0]
            notes.append(f"precision: `{item.name}` is {own_dtype}, the spec's {spec_dtype}; off by {size:.2e}")
    return notes
