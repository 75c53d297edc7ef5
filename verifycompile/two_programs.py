"""From two captured programs to a report: relation inference first, a numeric witness where it fails."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import torch
from torch._ops import OpOverload

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.capture.data_parallel.own_losses import Multiplied, with_multiplied_sums, with_own_losses
from verifycompile.capture.in_parts import cuts_unevenly, in_parts, joins_and_cuts
from verifycompile.cause import (
    Cause,
    with_styles,
)
from verifycompile.certificate.making import certificate_of
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report, SecondLook, Stats
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.findings_of_proofs import finding_of_blocker, finding_of_limit, finding_of_mismatch, with_remedy
from verifycompile.options import Options
from verifycompile.program import Blocker, Program
from verifycompile.reduction.search import Search
from verifycompile.refinement.check import check_refinement
from verifycompile.refinement.result import RefinementResult
from verifycompile.refutation import Repairs, Spent, with_repairs, with_replay, with_witness
from verifycompile.rewrites.lemmas.functions import DEFINITIONS
from verifycompile.rewrites.registry import DRAWS, EXHAUSTED
from verifycompile.second_look import different_outputs, look_again
from verifycompile.strategies import Strategy, answer, is_unproved
from verifycompile.within_limits import within_limits

_SHARE_OF_PROOF = 0.6
"""Of the time that is left; the rest is for the search for an input on which the programs differ."""

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
class Pair:
    """Two programs that are asked about, and how the cause of a difference is sought."""

    spec: Program
    implementation: Program
    options: Options
    repairs: Repairs


def verify_programs(spec: Program, implementation: Program, options: Options, repairs: Repairs | None = None) -> Report:
    """The report on two captured programs. ``options.on_unproved`` decides how severe unproved findings are."""
    seconds = spec.seconds + implementation.seconds
    pair = Pair(spec, implementation, options, repairs or Repairs(proves))
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
    findings += [finding_of_blocker(blocker) for blocker in blockers if (blocker.code, blocker.message) not in reported]
    verdict = Verdict.UNPROVED if findings else Verdict.VERIFIED
    search: Search | None = None
    outside = _right_by_code_outside(spec, captured or implementation, result)
    if outside is not None:
        findings[0] = dataclasses.replace(findings[0].noted(outside.note), hint=outside.hint)
    elif findings and not any(blocker.code in _INCOMPARABLE for blocker in blockers):
        findings[0], search = with_witness(findings[0], spec, implementation, result.relations)
        verdict = findings[0].verdict
    causes: tuple[Cause, ...] = ()
    if verdict is Verdict.REFUTED:
        spent = Spent(proof_seconds, started, search)
        findings, causes = with_repairs(findings, (spec, implementation), result.mismatch, repairs, spent)
    findings = [with_remedy(with_styles(finding, spec, implementation)) for finding in findings]
    if search is not None:
        findings[0] = with_replay(findings[0], search, implementation, repairs, causes)
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
    return _report(pair.spec, implementation, pair.options, Repairs(proves)) if proof else None


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
