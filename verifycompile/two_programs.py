"""From two captured programs to a report: relation inference first, a numeric witness where it fails."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
import torch.fx
from torch._ops import OpOverload

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.capture.in_parts import cuts_unevenly, in_parts, joins_and_cuts
from verifycompile.capture.own_losses import Multiplied, with_multiplied_sums, with_own_losses
from verifycompile.cause import (
    Cause,
    OneGraph,
    Subject,
    find_causes,
    line_of_own,
    right_record,
    with_causes,
    with_gradients_passed,
    with_styles,
    with_unread_input,
)
from verifycompile.cause import failures as cause_failures
from verifycompile.certificate.making import certificate_of
from verifycompile.counterexamples import counterexample_of, mended_program, with_script
from verifycompile.diagnostics.codes import UNPROVED_CODES
from verifycompile.diagnostics.finding import CAUSE_UNCERTAIN, Finding, Label
from verifycompile.diagnostics.locate import helper_labels, modules_before, place_of
from verifycompile.diagnostics.report import Report, SecondLook, Stats
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Blocker, Program
from verifycompile.reduction.search import Search, find_difference
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.dtensor_results import CODE as MISREAD
from verifycompile.refinement.mismatch import Mismatch
from verifycompile.refinement.result import RefinementResult
from verifycompile.rewrites.lemmas.functions import DEFINITIONS
from verifycompile.rewrites.registry import DRAWS, EXHAUSTED
from verifycompile.second_look import different_outputs, look_again
from verifycompile.strategies import Strategy, answer, is_unproved
from verifycompile.torch_interface.model_lines import model_location_of
from verifycompile.torch_interface.source import at_line, lines_of
from verifycompile.within_limits import within_limits

_SHARE_OF_PROOF = 0.6
"""Of the time that is left; the rest is for the search for an input on which the programs differ."""

_SECONDS_FOR_CAUSES = 8.0
_PROOFS_FOR_CAUSES = 6
"""The search for causes may work for so many seconds of its thread, or for as long as so many proofs of the program.

On the clock only ``time_limit`` ends it: what else a machine does changes no report.
"""
_SECONDS_OF_REFUSAL = 10.0
_PROOFS_OF_REFUSAL = 10
"""A refusal may take so many seconds in all, or as long as so many proofs. What proof and input took of it is taken
from the time for causes, of which half is left in any case.
"""
_SHARE_OF_CAUSES = 0.8
"""Of the time that is left; the rest is for the script that replays the difference."""

_FUNCTIONS = frozenset({"exp", "log", "silu", "softplus", *(law.left[0] for law in DEFINITIONS)})
"""Names of torch's operators that laws define by exponentials, and of what these laws write."""

_IN_ANY_FORM = frozenset({EXHAUSTED, DRAWS})
"""What writing values in another form does not cure."""

_INCOMPARABLE = frozenset({"VC203", "VC204", "VC207", "VC208", "VC209"})
"""Blockers under which a numeric comparison would mean nothing: the captured graph is that of one rank, or the spec is
one of several."""


def proves(spec: Program, implementation: Program) -> bool:
    """Whether all outputs of the spec have a relation, in one of the forms that values may be written in."""
    return any(_proves_as_written(spec, form) for form in _forms(spec, implementation))


def _forms(spec: Program, implementation: Program) -> Iterator[Program]:
    in_parts, by_definition = _gains_in_parts(spec, implementation), _gains_by_definition(spec, implementation)
    yield implementation
    if in_parts:
        yield _piecewise(implementation)
    if by_definition:
        yield _defined(implementation)
    if in_parts and by_definition:
        yield _defined(_piecewise(implementation))


def _proves_as_written(spec: Program, implementation: Program) -> bool:
    result = check_refinement(spec, implementation)
    own = None if result.mismatch is None else with_own_losses(implementation, result.placements)
    return result.mismatch is None if own is None else _proves_as_written(spec, own)


@dataclasses.dataclass(frozen=True)
class Repairs:
    """How the cause of a difference is sought.

    ``changeable``: what can be changed, where that is not the graph of the implementation. ``proves``: whether a
    changed program is proved.
    """

    changeable: Callable[[], Subject] | None = None
    proves: Callable[[Program, Program], bool] = proves


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two programs that are asked about, and how the cause of a difference is sought."""

    spec: Program
    implementation: Program
    options: Options
    repairs: Repairs = dataclasses.field(default_factory=Repairs)


def verify_programs(spec: Program, implementation: Program, options: Options, repairs: Repairs | None = None) -> Report:
    """The report on two captured programs. ``options.on_unproved`` decides how severe unproved findings are."""
    seconds = spec.seconds + implementation.seconds
    pair = Pair(spec, implementation, options, repairs or Repairs())
    return within_limits(options, seconds, lambda: answer(OF_PAIRS, pair))


def _report(
    spec: Program, implementation: Program, options: Options, repairs: Repairs, captured: Program | None = None
) -> Report:
    """``captured``: the implementation, where what is given is it with the cotangents of each rank's own loss."""
    started = time.thread_time()
    blockers = _distinct((*implementation.blockers, *spec.blockers))
    fatal = _fatal(blockers)
    result, ended = RefinementResult(relations={}, mismatch=None), None
    if not fatal:
        different = functools.cache(functools.partial(_different, spec, implementation))
        proof = bounds.attempt("the proof", lambda: check_refinement(spec, implementation, different), _SHARE_OF_PROOF)
        result, ended = (result, proof) if isinstance(proof, RanOut) else (proof, None)
    own = None if result.mismatch is None else with_own_losses(implementation, result.placements)
    if own is not None:
        return _report(spec, own, options, repairs, implementation)
    proof_seconds = time.thread_time() - started

    findings = [finding_of_mismatch(result.mismatch, spec)] if result.mismatch is not None else []
    if ended is not None:
        findings = [finding_of_limit(ended)]
    reported = {(finding.code, finding.message) for finding in findings}
    findings += [
        _finding_of_blocker(blocker) for blocker in blockers if (blocker.code, blocker.message) not in reported
    ]
    verdict = Verdict.UNPROVED if findings else Verdict.VERIFIED
    search: Search | None = None
    outside = _right_by_code_outside(spec, captured or implementation, result)
    if outside is not None:
        findings[0] = dataclasses.replace(findings[0].noted(outside.note), hint=outside.hint)
    elif findings and not any(blocker.code in _INCOMPARABLE for blocker in blockers):
        findings[0], search = _with_witness(findings[0], spec, implementation, result.relations)
        verdict = findings[0].verdict
    causes: tuple[Cause, ...] = ()
    if verdict is Verdict.REFUTED:
        findings[0] = _with_help_for_its_code(findings[0], spec, implementation, repairs, result.mismatch)
    if verdict is Verdict.REFUTED and result.mismatch is not None and _is_open(findings[0], result.mismatch):
        changeable = repairs.changeable or functools.partial(OneGraph, spec, implementation)
        shown = None if search is None else (search.spec, search.implementation)
        spent = proof_seconds, time.thread_time() - started
        causes, failures = _causes(changeable, repairs.proves, spent, findings[0], shown)
        findings[:1] = with_causes(findings[0].noted(*dict.fromkeys(failures)), causes, result.mismatch.output)
        if not causes:
            findings[0] = with_unread_input(findings[0], spec, implementation)
    findings = [_with_remedy(with_styles(finding, spec, implementation)) for finding in findings]
    if search is not None:
        mended = functools.partial(_mended, search, implementation, repairs, causes)
        findings[0] = _with_script(findings[0], search, mended)
    look: SecondLook | None = None
    if verdict is Verdict.VERIFIED:
        look, contradiction = _second_look(spec, implementation)
        if contradiction is not None:
            findings, verdict = [contradiction], Verdict.UNPROVED
    if verdict is Verdict.UNPROVED and findings and result.exhausted:
        note = f"a budget of the search ran out (VC205): {', '.join(result.exhausted)}"
        findings[0] = findings[0].noted(note)
    if verdict is Verdict.UNPROVED and options.on_unproved == "warn":
        findings = [dataclasses.replace(finding, severity=Severity.WARNING) for finding in findings]

    assumptions = tuple(dict.fromkeys((*spec.assumptions, *implementation.assumptions, *result.assumptions)))
    return Report(
        verdict=verdict,
        relations=dict(result.relations),
        findings=tuple(findings),
        assumptions=assumptions,
        stats=Stats(
            spec_nodes=result.spec_nodes or len(spec.graph.graph.nodes),
            implementation_nodes=result.impl_nodes or len(implementation.graph.graph.nodes),
            spec_capture_seconds=spec.seconds,
            implementation_capture_seconds=implementation.seconds,
            counts=result.counts,
            stages=result.stages,
        ),
        certificate=certificate_of(spec, implementation, result, assumptions) if verdict is Verdict.VERIFIED else None,
        placements=dict(result.placements),
        second_look=look,
        programs=(spec, implementation),
    )


def _is_open(finding: Finding, mismatch: Mismatch) -> bool:
    """Whether a repair is to be sought: none is known yet, and what torch records is not all that is wrong."""
    return not finding.hint and (finding.code == MISREAD or not mismatch.certain)


def _right_by_code_outside(spec: Program, implementation: Program, result: RefinementResult) -> Multiplied | None:
    """The program that is proved where code outside of the graph multiplies a loss: nothing is refuted then."""
    if result.mismatch is None or result.mismatch.certain:
        return None
    multiplied = with_multiplied_sums(implementation, result.placements)
    if multiplied is None:
        return None
    proof = bounds.attempt("the proof with a loss that is multiplied outside", lambda: proves(spec, multiplied.program))
    return multiplied if proof is True else None


def _fatal(blockers: Sequence[Blocker]) -> list[Blocker]:
    """Those under which the graphs are other programs than the question is about."""
    return [blocker for blocker in blockers if blocker.node is None or blocker.code in _INCOMPARABLE]


def _why_in_parts(pair: Pair, known: Report | None) -> str:
    spec, implementation = pair.spec, pair.implementation
    if not is_unproved(known) or known.findings[0].code in _IN_ANY_FORM:
        return ""
    if _fatal((*implementation.blockers, *spec.blockers)):
        return ""
    return "values are joined and cut" if _gains_in_parts(spec, implementation) else ""


def _gains_in_parts(spec: Program, implementation: Program) -> bool:
    return not implementation.piecewise and joins_and_cuts(spec, implementation)


def _piecewise(implementation: Program) -> Program:
    return dataclasses.replace(implementation, piecewise=True)


def _in_parts(pair: Pair, _: Report | None) -> Report | str | None:
    return _with_other_terms(pair, _piecewise(pair.implementation), "the proof by parts of values")


def _with_other_terms(pair: Pair, implementation: Program, stage: str) -> Report | str | None:
    """The report, where the programs are proved once values are written in the implementation's other form."""
    proof = bounds.attempt(stage, lambda: _proves_as_written(pair.spec, implementation), _SHARE_OF_PROOF)
    if isinstance(proof, RanOut):
        return proof.describe()
    return _report(pair.spec, implementation, pair.options, Repairs()) if proof else None


def _why_cut_alike(pair: Pair, known: Report | None) -> str:
    spec, implementation = pair.spec, pair.implementation
    if not is_unproved(known) or known.findings[0].code == DRAWS:
        return ""
    if implementation.piecewise or _fatal((*implementation.blockers, *spec.blockers)):
        return ""
    if implementation.mesh is not None and not cuts_unevenly(implementation):
        return ""  # one program for all ranks, which cuts its shards as the spec may cut the whole
    return "ranks may cut elsewhere than the spec"


def _cut_alike(pair: Pair, _: Report | None) -> Report | str | None:
    found = bounds.attempt("the proof with tensors cut alike", lambda: _first_cut_alike(pair))
    return found.describe() if isinstance(found, RanOut) else found


def _first_cut_alike(pair: Pair) -> Report | None:
    for programs in in_parts(pair.spec, pair.implementation):
        report = verify_programs(*programs, pair.options)
        if report.verdict is Verdict.VERIFIED:
            return report
    return None


def _why_by_definition(pair: Pair, known: Report | None) -> str:
    spec, implementation = pair.spec, pair.implementation
    if not is_unproved(known) or known.findings[0].code in _IN_ANY_FORM:
        return ""
    if _fatal((*implementation.blockers, *spec.blockers)):
        return ""
    return "functions are written by others" if _gains_by_definition(spec, implementation) else ""


def _gains_by_definition(spec: Program, implementation: Program) -> bool:
    of_spec, called = _calls(spec), _calls(implementation)
    is_called = any(str(packet).rpartition(".")[2] in _FUNCTIONS for packet in (of_spec | called))
    return is_called and not implementation.by_definition and of_spec != called


def _defined(implementation: Program) -> Program:
    return dataclasses.replace(implementation, by_definition=True)


def _calls(program: Program) -> Counter[object]:
    """How often a program calls each operator on elements."""
    targets = (node.target for node in program.graph.graph.nodes)
    return Counter(t.overloadpacket for t in targets if isinstance(t, OpOverload) and torch.Tag.pointwise in t.tags)


def _by_definition(pair: Pair, _: Report | None) -> Report | str | None:
    defined = _defined(pair.implementation)
    found = _with_other_terms(pair, defined, "the proof by definitions of functions")
    if found is not None or not _gains_in_parts(pair.spec, defined):
        return found
    return _with_other_terms(pair, _piecewise(defined), "the proof by parts of values and definitions of functions")


AS_CAPTURED: Strategy[Pair] = Strategy(
    "the programs as they were captured",
    lambda _, known: "it costs least" if known is None else "",
    lambda pair, _: _report(pair.spec, pair.implementation, pair.options, pair.repairs),
)
IN_PARTS = Strategy("values as parts that end within shards", _why_in_parts, _in_parts)
BY_DEFINITION = Strategy("functions by their definitions", _why_by_definition, _by_definition)
CUT_ALIKE = Strategy("tensors cut alike in both programs", _why_cut_alike, _cut_alike)
OF_PAIRS = (AS_CAPTURED, IN_PARTS, BY_DEFINITION, CUT_ALIKE)


def _different(spec: Program, implementation: Program) -> Collection[str]:
    """Outputs that are known to differ. What fails here only leaves questions to be asked."""
    try:
        return different_outputs(spec, implementation)
    except Exception:  # noqa: BLE001 - nothing is accepted or refused by this
        return ()


def _second_look(spec: Program, implementation: Program) -> tuple[SecondLook, Finding | None]:
    try:
        found = bounds.attempt("the second look", lambda: look_again(spec, implementation))
    except Exception as error:  # noqa: BLE001 - the proof stands, and the report says that nothing else was done
        return SecondLook(done=False, text=f"not done: {type(error).__name__}: {error}"), None
    if isinstance(found, RanOut):
        return SecondLook(done=False, text=f"not done: {found.describe()}"), None
    return found


def _distinct(blockers: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """The first blocker of each code and text: one cause is reported once, however many nodes it has."""
    return tuple({(blocker.code, blocker.message): blocker for blocker in reversed(blockers)}.values())[::-1]


def finding_of_mismatch(mismatch: Mismatch, spec: Program) -> Finding:
    """The mismatch at the user's lines: refuted where it is certain, else still to be tried on numbers.

    A line that the spec runs too is right: what comes to it is wrong where another line made it.
    """
    labels: tuple[Label, ...] = ()
    place = place_of(mismatch.impl_node)
    origin = None if mismatch.origin_node is None else model_location_of(mismatch.origin_node)
    if origin is not None and place is not None and at_line(place) in lines_of(spec.graph.graph):
        assert mismatch.origin_node is not None
        assert mismatch.impl_node is not None
        own = line_of_own(mismatch.origin_node, mismatch.impl_node, spec)
        if own is not None:
            place, labels = own, (Label(place, "it is needed here"),)
            labels += (Label(origin, mismatch.origin_label),) if at_line(own) != at_line(origin) else ()
    if origin is not None and not labels:
        labels = (Label(origin, mismatch.origin_label),)
    labels = (*labels, *helper_labels(mismatch.impl_node))
    return Finding(
        code=mismatch.code,
        severity=Severity.ERROR,
        message=mismatch.message,
        spec_location=place_of(mismatch.spec_node),
        impl_location=place,
        relation_found=mismatch.relation_found,
        relation_expected=mismatch.relation_expected,
        label=mismatch.impl_label,
        labels=labels,
        modules=modules_before(mismatch.impl_node),
        notes=mismatch.notes,
        output=mismatch.output,
        followers=mismatch.followers,
        verdict=Verdict.REFUTED if mismatch.certain else Verdict.UNPROVED,
    )


def finding_of_limit(ended: RanOut) -> Finding:
    """What a limit ended before there was an answer."""
    message, place = ended.describe(), ended.place
    location = place_of(place) if isinstance(place, torch.fx.Node) else None
    return Finding(code=EXHAUSTED, severity=Severity.ERROR, message=message, impl_location=location)


def _with_remedy(finding: Finding) -> Finding:
    return finding.noted(_REMEDIES[finding.code]) if finding.code in _REMEDIES else finding


_REMEDIES = {
    "VC201": (
        "write the step with operators that are declared, or declare this one (CONTRIBUTING, `Add an operator`); a "
        "waiver lets a job go on for a time"
    ),
    "VC202": (
        "write this call with arguments and dtypes that are declared (docs/operators.md), verify the model without it "
        "(a cast to a narrower dtype is rounding), or extend the declaration (CONTRIBUTING, `Add an operator`); a "
        "waiver lets a job go on for a time"
    ),
}


def _finding_of_blocker(blocker: Blocker) -> Finding:
    return Finding(
        code=blocker.code,
        severity=Severity.ERROR,
        message=blocker.message,
        impl_location=place_of(blocker.node),
    )


def _with_witness(
    finding: Finding, spec: Program, implementation: Program, proved: Collection[str]
) -> tuple[Finding, Search | None]:
    """The finding as refuted with a counterexample where there is one, else with a note that there is none.

    And the search that found it.
    """
    if finding.verdict is Verdict.REFUTED:
        return finding, None
    try:
        search = bounds.attempt(
            "the search for an input",
            lambda: find_difference(spec, implementation, proved, output=finding.output),
        )
    except Exception as error:  # noqa: BLE001 - the finding stands, unproved: what fails here can accept nothing
        note = f"the programs could not be compared numerically: {type(error).__name__}: {error}"
        return finding.noted(note), None
    if isinstance(search, RanOut):
        return finding.noted(search.describe()), None
    notes = (*finding.notes, search.note) if search.note else finding.notes
    witness = search.witness
    if witness is None:
        return dataclasses.replace(finding, notes=notes), None
    counterexample = counterexample_of(witness, search.implementation)
    refuted = dataclasses.replace(
        finding, verdict=Verdict.REFUTED, counterexample=counterexample, notes=notes, output=witness.output
    )
    if finding.code == "VC107" and finding.output != witness.output:
        return _at_output(refuted, spec, implementation), search
    return _certain(refuted) if finding.code in UNPROVED_CODES else refuted, search


def _at_output(finding: Finding, spec: Program, implementation: Program) -> Finding:
    """A difference at the output that shows it: the one at which the proof stopped may be right."""
    wanted, node = (
        next((output.node for output in program.outputs if output.name == finding.output), None)
        for program in (spec, implementation)
    )
    return dataclasses.replace(
        finding,
        message=f"`{finding.output}` differs from the spec's",
        label="",
        labels=helper_labels(node),
        spec_location=place_of(wanted),
        impl_location=place_of(node),
        relation_found="",
        relation_expected="",
        notes=(*finding.notes, f"the proof stopped at another output: {finding.message.removesuffix('.')}"),
    )


def _with_help_for_its_code(
    finding: Finding, spec: Program, implementation: Program, repairs: Repairs, mismatch: Mismatch | None
) -> Finding:
    """The finding with what mends it, where its code says what alone that may be."""
    try:
        if finding.code == "VC111":
            return with_gradients_passed(finding, spec, implementation, repairs.proves, _SECONDS_FOR_CAUSES)
        if finding.code == MISREAD and mismatch is not None:
            hint = right_record(mismatch, spec, [implementation], lambda mended: repairs.proves(spec, mended[0]))
            return dataclasses.replace(finding, hint=hint)
    except Exception as error:  # noqa: BLE001 - the finding stands without help: what fails here can accept nothing
        what = "a line that stops a gradient" if finding.code == "VC111" else "another record of a DTensor"
        return finding.noted(cause_failures.failure(f"the search for {what}", error))
    return finding


def _mended(search: Search, implementation: Program, repairs: Repairs, causes: Sequence[Cause]) -> Program | None:
    """The program of the counterexample with the changes that are known to mend all of it."""
    if not causes or any(cause.proved for cause in causes):
        return None
    if repairs.changeable is None:
        return mended_program(OneGraph(search.spec, search.implementation), causes)
    # What several graphs make together at smaller sizes is not made of the graphs that the changes are of.
    is_reduced = search.implementation is not implementation
    return None if is_reduced else mended_program(repairs.changeable(), causes)


def _with_script(finding: Finding, search: Search, mended: Callable[[], Program | None]) -> Finding:
    """The finding with the script that replays its counterexample."""
    assert finding.counterexample is not None
    assert search.witness is not None
    known, witness = finding.counterexample, search.witness
    try:
        found = bounds.attempt(
            "the script", lambda: with_script(known, witness, search.spec, search.implementation, mended())
        )
    except Exception as error:  # noqa: BLE001 - the finding stands without a script
        found = dataclasses.replace(known, no_script=f"{type(error).__name__}: {error}")
    if isinstance(found, RanOut):
        found = dataclasses.replace(known, no_script=found.describe())
    return dataclasses.replace(finding, counterexample=found)


def _certain(finding: Finding) -> Finding:
    """A difference that is certain, at the place where the proof stopped: what stopped it is no error of its own."""
    assert finding.counterexample is not None
    stopped = f"{CAUSE_UNCERTAIN} ({finding.code}: {finding.message.removesuffix('.')})"
    message = f"`{finding.counterexample.output}` differs from the spec's"
    return dataclasses.replace(
        finding, code="VC107", message=message, label="the proof stopped here", notes=(*finding.notes, stopped)
    )


def _causes(
    changeable: Callable[[], Subject],
    proves: Callable[[Program, Program], bool],
    spent: tuple[float, float],
    found: Finding,
    shown: tuple[Program, Program] | None,
) -> tuple[tuple[Cause, ...], list[str]]:
    """The changes after which the program is proved, nothing where none are found; and what failed on the way.

    ``spent``: seconds of the proof, and of all that came before.
    """
    failures: list[str] = []
    proof_seconds, before = spent
    seconds = max(_SECONDS_FOR_CAUSES, _PROOFS_FOR_CAUSES * proof_seconds)
    left = max(_SECONDS_OF_REFUSAL, _PROOFS_OF_REFUSAL * proof_seconds) - before
    seconds = min(seconds, max(left, seconds / 2))
    try:
        places = [item.location for item in found.labels] if found.code == "VC101" else []
        search = functools.partial(
            find_causes, changeable(), proves, seconds=seconds, suspected=places, shown=shown, failures=failures
        )
        causes = bounds.attempt("the search for a repair", search, _SHARE_OF_CAUSES)
    except cause_failures.UNKNOWN:
        return (), failures  # graphs that cannot be copied
    except Exception as error:  # noqa: BLE001 - the finding stands without its cause: what fails here can accept nothing
        failures.append(cause_failures.failure("the search for a repair", error))
        return (), failures
    return ((), [*failures, causes.describe()]) if isinstance(causes, RanOut) else (causes, failures)
