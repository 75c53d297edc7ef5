"""What follows a failed proof: an input on which the programs differ, what mends them, the script that replays it."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.cause import (
    Cause,
    OneGraph,
    Subject,
    find_causes,
    right_record,
    with_causes,
    with_gradients_passed,
    with_unread_input,
)
from verifycompile.cause import failures as cause_failures
from verifycompile.counterexamples import counterexample_of, mended_program, with_script
from verifycompile.diagnostics.codes import UNPROVED_CODES
from verifycompile.diagnostics.finding import CAUSE_UNCERTAIN, Counterexample, Finding
from verifycompile.diagnostics.locate import helper_labels, place_of
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import Program
from verifycompile.reduction.search import Search, find_difference
from verifycompile.refinement.dtensor_results import CODE as MISREAD
from verifycompile.refinement.mismatch import Mismatch

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


@dataclasses.dataclass(frozen=True)
class Repairs:
    """How the cause of a difference is sought.

    ``changeable``: what can be changed, where that is not the graph of the implementation. ``proves``: whether a
    changed program is proved.
    """

    proves: Callable[[Program, Program], bool]
    changeable: Callable[[], Subject] | None = None


@dataclasses.dataclass(frozen=True)
class Spent:
    """What a refusal has cost: seconds of the ``proof``, and what began at ``started``, seconds of the thread.

    ``search``: for the input on which the programs differ.
    """

    proof: float
    started: float
    search: Search | None

    def until_now(self) -> float:
        """Seconds of all that has come before."""
        return time.thread_time() - self.started


def _is_open(finding: Finding, mismatch: Mismatch) -> bool:
    """Whether a repair is to be sought: none is known yet, and what torch records is not all that is wrong."""
    return not finding.hint and (finding.code == MISREAD or not mismatch.certain)


def with_repairs(
    findings: Sequence[Finding],
    pair: tuple[Program, Program],
    mismatch: Mismatch | None,
    repairs: Repairs,
    spent: Spent,
) -> tuple[list[Finding], tuple[Cause, ...]]:
    """What is refuted, told where the changes are after which the program is proved; and these changes.

    ``mismatch``: where the proof stopped. ``spent``: what came before, and the search for an input among it.
    """
    first, *others = findings
    first = _with_help_for_its_code(first, *pair, repairs, mismatch)
    if mismatch is None or not _is_open(first, mismatch):
        return [first, *others], ()
    causes, failures = _causes(repairs, pair, spent, first)
    told = with_causes(first.noted(*dict.fromkeys(failures)), causes, mismatch.output)
    if not causes:
        told[0] = with_unread_input(told[0], *pair)
    return [*told, *others], causes


def with_witness(
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


def _certain(finding: Finding) -> Finding:
    """A difference that is certain, at the place where the proof stopped: what stopped it is no error of its own."""
    assert finding.counterexample is not None
    stopped = f"{CAUSE_UNCERTAIN} ({finding.code}: {finding.message.removesuffix('.')})"
    message = f"`{finding.counterexample.output}` differs from the spec's"
    return dataclasses.replace(
        finding, code="VC107", message=message, label="the proof stopped here", notes=(*finding.notes, stopped)
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


def with_replay(
    finding: Finding, search: Search, implementation: Program, repairs: Repairs, causes: Sequence[Cause]
) -> Finding:
    """The finding with the script that replays its counterexample."""
    assert finding.counterexample is not None
    assert search.witness is not None
    known, witness = finding.counterexample, search.witness

    def script() -> Counterexample:
        mended = _mended(search, implementation, repairs, causes)
        return with_script(known, witness, search.spec, search.implementation, mended)

    try:
        found = bounds.attempt("the script", script)
    except Exception as error:  # noqa: BLE001 - the finding stands without a script
        found = dataclasses.replace(known, no_script=f"{type(error).__name__}: {error}")
    if isinstance(found, RanOut):
        found = dataclasses.replace(known, no_script=found.describe())
    return dataclasses.replace(finding, counterexample=found)


def _causes(
    repairs: Repairs, pair: tuple[Program, Program], spent: Spent, found: Finding
) -> tuple[tuple[Cause, ...], list[str]]:
    """The changes after which the program is proved, nothing where none are found; and what failed on the way."""
    failures: list[str] = []
    seconds = max(_SECONDS_FOR_CAUSES, _PROOFS_FOR_CAUSES * spent.proof)
    left = max(_SECONDS_OF_REFUSAL, _PROOFS_OF_REFUSAL * spent.proof) - spent.until_now()
    seconds = min(seconds, max(left, seconds / 2))
    shown = None if spent.search is None else (spent.search.spec, spent.search.implementation)
    try:
        subject = OneGraph(*pair) if repairs.changeable is None else repairs.changeable()
        places = [item.location for item in found.labels] if found.code == "VC101" else []
        search = functools.partial(
            find_causes, subject, repairs.proves, seconds=seconds, suspected=places, shown=shown, failures=failures
        )
        causes = bounds.attempt("the search for a repair", search, _SHARE_OF_CAUSES)
    except cause_failures.UNKNOWN:
        return (), failures  # graphs that cannot be copied
    except Exception as error:  # noqa: BLE001 - the finding stands without its cause: what fails here can accept nothing
        failures.append(cause_failures.failure("the search for a repair", error))
        return (), failures
    return ((), [*failures, causes.describe()]) if isinstance(causes, RanOut) else (causes, failures)
