"""A comparison from its question to its report: both programs are made, given the same values, run and compared."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.comparison.alone import off_alone
from verifycompile.comparison.compiled import as_compiled
from verifycompile.comparison.differences import FINAL, Comparing, precision_notes
from verifycompile.comparison.early import failed, one_object, undecided, unequal_replicas
from verifycompile.comparison.inputs import Inputs, make_inputs
from verifycompile.comparison.job_ranks import InTheJob
from verifycompile.comparison.judge import Judged
from verifycompile.comparison.lines import Lines, at_line
from verifycompile.comparison.localize import Places, findings_of, module_to_look_into
from verifycompile.comparison.names import Call, call_of, inner_model, named_modules, named_tensors
from verifycompile.comparison.parameters import Parameters, by_name, gather, spread
from verifycompile.comparison.passes import run
from verifycompile.comparison.phases import Phases
from verifycompile.comparison.programs import (
    Spec,
    casts_of_wrappers,
    copied_spec,
    copy_for_rank,
    layout_over,
    needs_a_model_for_each_rank,
    recovered_spec,
    root_of_program,
    wrapped_axes,
)
from verifycompile.comparison.proof import Measured, layouts_of, states_of
from verifycompile.comparison.ranks import InThisProcess, RankFailedError, Ranks
from verifycompile.comparison.reference import Reference
from verifycompile.comparison.report import CompareReport
from verifycompile.comparison.worker import Ran, Training, Worker
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Mesh, MeshAxis
from verifycompile.torch_interface.rank_threads.perturbation import epsilon_of
from verifycompile.torch_interface.rank_threads.ranks_in_threads import RanksInThreads
from verifycompile.torch_interface.ranks.acting_rank import groups_of_its_own, is_pretended
from verifycompile.torch_interface.ranks.mesh import RootMesh
from verifycompile.torch_interface.ranks.observation import ReadKind, rank_reads_ignored, reads

_RANDOM = "random numbers were drawn: all streams begin alike, but a rank's draws for a part are not the spec's"


@dataclasses.dataclass
class Question:
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
    patience: float
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
            refused = one_object(asked, needs_a_model_for_each_rank(self.model))
            if refused is not None:
                return CompareReport(Verdict.UNPROVED, (refused,), ranks=len(threads.ranks))

        def make(_: int) -> Worker:
            if options.build is not None:
                return self._worker(options.build(), root)
            if alone:
                return self._worker(self.model, root)
            model, hooks = copy_for_rank(self.model)
            worker = self._worker(model, root)
            worker.hooks = hooks
            return worker

        with rank_reads_ignored(), groups_of_its_own() if is_pretended() else contextlib.nullcontext():
            try:
                ranks = InThisProcess(threads, make)
                own = None if alone or options.build is not None else threads.ranks[0]
                return self._report(ranks, ranks.worker(threads.ranks[0]).model, root, own)
            except RankFailedError as error:
                return CompareReport(Verdict.UNPROVED, (failed(error),), ranks=len(threads.ranks))

    def in_the_job(self) -> CompareReport:
        """On this job's own ranks: the first one leads."""
        try:
            ranks = InTheJob(Phases(self.patience), self._model, self._worker_of)
        except RankFailedError as error:
            return CompareReport(Verdict.UNPROVED, (failed(error),), ranks=dist.get_world_size())
        try:
            if not ranks.leads:
                result = ranks.follow()
            else:
                result = self._led(ranks)
                ranks.dismiss(result)
        finally:
            ranks.close()
        if isinstance(result, Exception):
            raise result
        return result

    def _model(self) -> Any:
        if self.model is not None:
            return self.model
        assert self.options.build is not None
        return self.options.build()

    def _worker_of(self, model: Any) -> Worker:
        return self._worker(model, root_of_program((model,), self.options))

    def _led(self, ranks: InTheJob) -> CompareReport | Exception:
        try:
            return self._report(ranks, ranks.model, root_of_program((ranks.model,), self.options), None)
        except RankFailedError as error:
            return CompareReport(Verdict.UNPROVED, (failed(error),), ranks=len(ranks.ranks))
        except UsageError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the ranks that follow end too
            return RuntimeError(f"the comparison failed on rank 0: {type(error).__name__}: {error}")

    def _report(self, ranks: Ranks, model: Any, root: RootMesh | None, own: int | None) -> CompareReport:
        mesh = root.description if root is not None else Mesh((MeshAxis("rank", 1),), (0,))
        # What has the parts of the spec's values is a copy of the model for this comparison alone.
        with _state_kept(ranks) if own is None else contextlib.nullcontext():
            return self._compared(ranks, model, mesh, root, own)

    def _compared(self, ranks: Ranks, model: Any, mesh: Mesh, root: RootMesh | None, own: int | None) -> CompareReport:
        options = self.options
        spec = None if options.spec is None else copied_spec(options.spec)
        entries = by_name(ranks.call("parameters"))
        held = None if spec is None else named_tensors(spec.model, {})
        if own is None:
            # The models that `build` made, one for each rank, are for this comparison alone.
            vary = self.seed if options.build is not None and isinstance(ranks, InThisProcess) else None
            parameters = gather(ranks, mesh, entries, held, options, seed=vary)
        else:
            parameters = spread(ranks, mesh, entries, held, options, own_rank=own, seed=self.seed)
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
        early = unequal_replicas(parameters, inputs)
        reference = self._reference(spec, each)
        casts = casts_of_wrappers(model)
        epsilons = (
            epsilon_of(t.dtype for t in (*named_tensors(spec.model, {}).values(), *inputs.whole.values())),
            epsilon_of(
                (*(e.dtype for by in entries.values() for e in by.values()),
                 *(t.dtype for t in inputs.whole.values()), *casts.values())
            ),
        )  # fmt: skip
        thresholds = reference.thresholds(epsilons, self.seeds)
        layouts = {**parameters.layouts, **{f"input.{name}": value for name, value in inputs.layouts.items()}}
        proved = layouts_of(self.proof, mesh)
        comparing = Comparing(ranks, reference, thresholds, layouts, mesh, options, proved=proved)
        comparing.decided = functools.partial(reference.decided, epsilons=epsilons, seeds=self.seeds)
        departed, drew = run(comparing, self.training, batches=len(self.args), seed=self.seed)
        places = Places(named_modules(model), inner_model(model), *ranks.call("places")[first])
        alone = self._each_alone(comparing, departed)
        causes = findings_of(comparing.found, places, departed, parameters.whole, alone)
        if causes:
            causes[0] = self._at_line(causes[0], comparing, departed, epsilons)
        self.notes += precision_notes(comparing.found.judged, casts, epsilons[0])
        drew = drew or reference.drew
        if not causes and ranks.left_uncompiled:
            causes = self._as_compiled(comparing, places, drew=drew)
        findings = [*early, *causes]
        doubts = self._doubts(spec, parameters, drew=drew)
        if findings and doubts:
            self.notes += doubts
            findings = [undecided(finding) for finding in findings]
        return self._finished(findings, comparing, ranks, epsilons)

    def _doubts(self, spec: Spec, parameters: Parameters, *, drew: bool) -> list[str]:
        """Why a difference need not be one of the programs."""
        doubts = [_RANDOM] if drew else []
        unsure = [spec.doubt if parameters.sharded() else "", spec.without]
        doubts += [f"{why}: pass the option `spec`, and a difference is certain" for why in unsure if why]
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
        except UsageError:
            raise
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
        devices = {tensor.device for tensor in named_tensors(spec.model, {}).values()}
        device = next(iter(devices)) if len(devices) == 1 else None

        def whole(name: str, tensor: torch.Tensor) -> torch.Tensor:
            value = inputs.whole[name].detach().to(device or tensor.device, copy=True)
            return value.requires_grad_(tensor.requires_grad)

        return template.with_tensors(whole)

    def _each_alone(self, comparing: Comparing, step: int) -> list[Judged]:
        """What is off by itself in the pass ``step``, after a run in which something was off."""
        if not any(item.exceeds for item in comparing.found.judged):
            return []
        try:
            return off_alone(comparing, self.seed, step)
        except RankFailedError as error:
            self.notes.append(f"no module was judged alone: the program does not run on the spec's tensors ({error})")
            return []

    def _as_compiled(self, comparing: Comparing, places: Places, *, drew: bool) -> list[Finding]:
        """What is off in the program as it is compiled, where nothing is off as Python runs it."""
        if drew:
            why = "random numbers were drawn, which a compiler draws in other ways"
            text = f"what a compiler makes of the program computes the same; it ran uncompiled, since {why}"
            self.assumptions.append(Assumption(text, AssumptionKind.OTHER, ()))
            return []
        self.notes.append("compared uncompiled, with all its modules, and then as it is compiled")
        return as_compiled(comparing, places, self.training, batches=len(self.args), seed=self.seed)

    def _at_line(self, finding: Finding, comparing: Comparing, step: int, epsilons: tuple[float, float]) -> Finding:
        """The finding at the line of a forward that is off in the pass ``step``, or whose backward is."""
        ranks = comparing.ranks
        forward, path = module_to_look_into(finding.output, comparing.found.judged)
        if path is None:
            return finding
        reference = comparing.reference.within(path, step)
        thresholds = reference.thresholds(epsilons, self.seeds)
        ranks.call("begin", self.seed)
        try:
            ranks.call("replay", step)
            ran: dict[int, Ran] = ranks.call("operations", path)
            if not forward:
                ran = ranks.call("gradients_of_operations")
        except RankFailedError:
            return finding
        lines = Lines(reference, thresholds, ranks, ran, mesh=comparing.mesh, scales=comparing.scales)
        found = lines.forward() if forward else lines.backward()
        ranks.call("drop")
        return finding if found is None else at_line(finding, found)

    def _describe(self, parameters: Parameters, inputs: Inputs, spec: Spec, own: int | None) -> None:
        self.assumptions += [*spec.assumptions, *inputs.assumptions]
        for name in parameters.inferred:
            text = f"`{name}` is placed as its shapes alone say"
            self.assumptions.append(Assumption(text, AssumptionKind.PLACEMENT, [name]))
        self.notes.append(f"all random streams begin with seed {self.seed}, on every rank and in the spec")
        if own is not None:
            self.notes.append("the parallel parameters are parts of the spec's values")
        if parameters.varied:
            names = ", ".join(f"`{name}`" for name in parameters.varied[:3])
            self.notes.append(f"all ranks held the same part of {names}: they have parts of other values here")

    def _finished(
        self, findings: list[Finding], comparing: Comparing, ranks: Ranks, epsilons: tuple[float, float]
    ) -> CompareReport:
        found = comparing.found
        refuted = any(finding.verdict is Verdict.REFUTED for finding in findings)
        verdict = Verdict.REFUTED if refuted else Verdict.UNPROVED if findings else Verdict.VERIFIED
        if not any(item.kind in FINAL for item in found.judged) and not refuted:
            verdict = Verdict.UNPROVED
        measured = Measured(
            found.judged,
            verdict,
            own_models=isinstance(ranks, InTheJob) or self.options.build is not None or len(ranks.ranks) == 1,
            own_inputs=isinstance(ranks, InTheJob),
            spec_given=self.options.spec is not None,
        )
        states, contradiction = states_of(self.proof, measured)
        return CompareReport(
            verdict=verdict,
            findings=tuple(findings),
            tensors=tuple(found.judged),
            not_compared=tuple((name, why) for name, _, why in found.missing),
            notes=tuple(self.notes),
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
