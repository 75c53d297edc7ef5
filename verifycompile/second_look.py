"""A second look at what is proved: both programs evaluated once, on one input and all ranks.

It shares nothing with the proof but the captured graphs, so it finds what a wrong declaration, a wrong lemma or a wrong
memo would accept. It can turn no program into a verified one. Its cost stays below a twentieth of the capture's: where
the programs' own sizes are too large it uses reduced ones; where there are many ranks, they hold parts of few kinds,
and those with equal parts share an evaluation. Where it would take longer still, it is cut short or not done.
"""

from __future__ import annotations

import dataclasses

from verifycompile.collection import collection_paused
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import SecondLook
from verifycompile.diagnostics.severity import Severity
from verifycompile.program import Program
from verifycompile.reduction.search import described_sizes, evaluable
from verifycompile.refinement.check import check_refinement
from verifycompile.torch_interface.rank_threads.operator_threads import one_thread
from verifycompile.witness import Agreement, EvaluationError, OutputComparison, compare_outputs
from verifycompile.witness.cost import calls, elements, most_elements
from verifycompile.witness.few_kinds import KINDS, kinds_of_ranks
from verifycompile.witness.interpreter import TOO_MUCH_WORK

_CALLS_OF_A_NODE = 5
"""Calls of an evaluation that take a twentieth of the capture of a node: 25 microseconds each, of 2.5 milliseconds.

Counted and not timed, so that the same is done on every machine.
"""


_ELEMENTS_ALLOWED_FOR_A_CALL = 1_024
"""More than ``cost`` counts for a call: ranks whose parts come to differ, as behind attention, share fewer evaluations
than are counted, and at such sizes an operator takes little longer than its call.
"""
_CALLS_AT_WILL = 4_000
"""With more calls, ranks share evaluations even where that is not needed."""
_ELEMENTS_AT_WILL = 200_000
"""Elements that take no time to speak of beside any capture."""
_ELEMENTS_BEFORE_A_SEARCH = 1 << 22
"""Elements that take less time than one question that has no answer."""
_TOO_LONG = "an evaluation on all ranks would take more than 5 % of the time of capture"


@dataclasses.dataclass(frozen=True)
class _How:
    """``kinds``: of parts that the ranks of an axis hold, as many as ranks where that is None. ``most_work``: elements
    with which the evaluation ends. ``at_sizes``: what a message says of the sizes.
    """

    kinds: int | None
    most_work: int
    at_sizes: str = ""


@collection_paused()
@one_thread()
def look_again(spec: Program, implementation: Program) -> tuple[SecondLook, Finding | None]:
    """What was found, and the finding where it contradicts the proof."""
    chosen = _affordable(spec, implementation)
    if chosen is None:
        return _not_done(_TOO_LONG), None
    how, distinct = chosen
    if elements(spec) + elements(implementation, distinct) <= how.most_work:
        return _compared(spec, implementation, how)
    for apart in (False, True):
        reduced = evaluable(spec, implementation, how.most_work, apart=apart, kinds=distinct)
        if reduced is None:
            return _not_done("the programs are large, and no smaller sizes were found"), None
        how = dataclasses.replace(how, at_sizes=f" at reduced sizes ({described_sizes(reduced)})")
        look, finding = _compared(reduced.spec, reduced.implementation, how)
        if finding is None or check_refinement(reduced.spec, reduced.implementation).mismatch is None:
            return look, finding
    # Their sizes make other programs of them, of which nothing was proved.
    return _not_done("what was proved does not hold at reduced sizes"), None


@collection_paused()
@one_thread()
def different_outputs(spec: Program, implementation: Program) -> frozenset[str]:
    """Outputs that differ on one input at the programs' own sizes: none where a look at these would take long.

    Raises ``EvaluationError``.
    """
    chosen = _affordable(spec, implementation)
    if chosen is None:
        return frozenset()
    how, distinct = chosen
    most = max(how.most_work, _ELEMENTS_BEFORE_A_SEARCH)
    if elements(spec) + elements(implementation, distinct) > most:
        return frozenset()
    results = compare_outputs(spec, implementation, 0, how.kinds, most)
    return frozenset(name for name, item in results.items() if item.agreement is Agreement.DIFFERENT)


def _affordable(spec: Program, implementation: Program) -> tuple[_How, int] | None:
    """How both programs can be evaluated in a twentieth of the time of capture, and on how many distinct ranks."""
    affordable = _CALLS_OF_A_NODE * sum(len(program.graph.graph.nodes) for program in (spec, implementation))
    ranks = 1 if implementation.mesh is None else len(implementation.mesh.ranks)
    affordable -= calls(spec, 1)
    choices = [(kinds, kinds_of_ranks(implementation, kinds)) for kinds in (KINDS, KINDS - 1)]
    if calls(implementation, ranks) <= _CALLS_AT_WILL:
        choices = [(None, ranks), *choices]
    chosen = next((item for item in choices if calls(implementation, item[1]) <= affordable), None)
    if chosen is None:
        return None
    kinds, distinct = chosen
    most = min(most_elements(), max(affordable * _ELEMENTS_ALLOWED_FOR_A_CALL, _ELEMENTS_AT_WILL))
    return _How(kinds, most), distinct


def _not_done(reason: str) -> SecondLook:
    return SecondLook(done=False, text=f"not done: {reason}")


def _compared(spec: Program, implementation: Program, how: _How) -> tuple[SecondLook, Finding | None]:
    at_sizes = how.at_sizes
    try:
        results = compare_outputs(spec, implementation, 0, how.kinds, how.most_work)
    except EvaluationError as error:
        return _not_done(str(error)), None
    different = [item for item in results.values() if item.agreement is Agreement.DIFFERENT]
    if different:
        return SecondLook(done=True, text=f"the programs differ{at_sizes}"), _finding(
            different[0], implementation, at_sizes
        )
    equal = [item for item in results.values() if item.agreement is Agreement.EQUAL]
    unknown = next((item.detail for item in results.values() if item.agreement is Agreement.UNKNOWN), "")
    unknown = _TOO_LONG if unknown == TOO_MUCH_WORK else unknown
    if not equal:
        return _not_done(unknown or "there is no output to compare"), None
    ranks = 1 if implementation.mesh is None else len(implementation.mesh.ranks)
    where = f"on all {ranks} ranks" if ranks > 1 else "on all ranks at once"
    if how.kinds is not None:
        where += f", whose parts of a tensor are of {how.kinds} kinds"
    text = f"both programs agree on one input{at_sizes}, {where}, in {len(equal)} of {len(results)} outputs"
    return SecondLook(done=True, text=f"{text} ({unknown})" if unknown else text), None


def _finding(found: OutputComparison, implementation: Program, at_sizes: str) -> Finding:
    mesh = implementation.mesh
    place = f" at {list(found.index)}" if found.index else ""
    rank = "" if mesh is None else f" on rank {mesh.ranks[found.rank]}"
    message = (
        f"the programs are proved equal, but on one input{at_sizes} `{found.name}`{place} is {found.spec_value:.6g} in "
        f"the spec and {found.impl_value:.6g}{rank} in the implementation"
    )
    report = (
        "either the proof or the evaluation is wrong, which is a defect of verifycompile: please report it with this "
        "message, the versions of torch and verifycompile, and the program"
    )
    return Finding(code="VC211", severity=Severity.ERROR, message=message, output=found.name, notes=(report,))
