"""From a captured question to a report: the strategies in their order, and what is known of spec and ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.capture.numbers.held_numbers import with_held_numbers
from verifycompile.capture.ranks.all_ranks import EACH_UP_TO
from verifycompile.capture.ranks.at_rank import at_rank
from verifycompile.capture.ranks.merged_collectives import UnmergeableError
from verifycompile.capture.ranks.rank_schedule import OrderError
from verifycompile.captured_notes import BareDoubt
from verifycompile.diagnostics.codes import OWN_PART_CODES
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.report import Report, noted
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Blocker, Program
from verifycompile.question import Question
from verifycompile.rank_evidence import with_rank_evidence
from verifycompile.rank_programs import as_one_device, proves_cut_alike, report_on_limit, verify_ranks
from verifycompile.refutation import Repairs
from verifycompile.rewrites.registry import DRAWS
from verifycompile.strategies import Strategy, answer, is_unproved
from verifycompile.torch_interface.ranks.mesh import place_at
from verifycompile.two_programs import proves, verify_programs
from verifycompile.within_limits import within_limits

_CURED_BY_NUMBERS = OWN_PART_CODES | {"VC102", "VC104", "VC107", "VC108", "VC202", "VC206"}
"""What may be wrong with a program because it computes with its rank, or be suspected of it: a rank's own graph has
plain numbers there.
"""


@dataclasses.dataclass(frozen=True)
class Asked:
    """Two captured programs, and the options under which they are asked about."""

    spec: Program
    implementation: Program
    options: Options


def verify_captured(spec: Program, implementation: Program, options: Options) -> Report:
    """The report on a captured question, within the limits of the options."""
    seconds = spec.seconds + implementation.seconds
    return within_limits(options, seconds, lambda: _verify_captured(Asked(spec, implementation, options)))


def _verify_captured(asked: Asked) -> Report:
    spec, implementation, options = asked.spec, asked.implementation, asked.options
    report = answer((*OF_RANKS, WITH_HELD_NUMBERS), asked)
    is_ambiguous = any(blocker.code == "VC209" for blocker in spec.blockers)
    doubt = None if report.verdict is Verdict.VERIFIED or is_ambiguous else _doubt(spec)
    if isinstance(doubt, RanOut) and report.verdict is Verdict.UNPROVED:
        report, doubt = noted(report, doubt.describe()), None
    if isinstance(doubt, RanOut):
        # Not knowing whether there is another spec, no difference from this one says anything.
        doubt = Blocker(None, "VC209", f"{doubt.describe()}.")
    if isinstance(doubt, BareDoubt) and report.verdict is Verdict.REFUTED and all(f.hint for f in report.findings):
        report, doubt = noted(report, doubt.message), None
    if doubt is not None:
        # What differs may be the program or the spec that was recovered from it.
        doubted = dataclasses.replace(spec, blockers=(doubt, *spec.blockers))
        found = verify_programs(doubted, implementation, options)
        differences = tuple(_difference(finding) for finding in report.findings if report.verdict is Verdict.REFUTED)
        findings = tuple(
            dataclasses.replace(finding, notes=(*finding.notes, *differences)) for finding in found.findings[:1]
        )
        strategies = (*report.strategies, *found.strategies)
        report = dataclasses.replace(found, findings=(*findings, *found.findings[1:]), strategies=strategies)
    report = with_rank_evidence(report, implementation, options)
    count = 1 if implementation.mesh is None else len(implementation.mesh.ranks)
    return dataclasses.replace(report, question=Question(spec.provenance, implementation.provenance, count))


def _difference(finding: Finding) -> str:
    place = finding.impl_location
    where = "" if place is None else f" at {Path(place.file).name}:{place.line}"
    return f"from the spec as it was recovered the program differs{where} ({finding.code}: {finding.message})"


def _doubt(spec: Program) -> Blocker | RanOut | None:
    """Why the spec may be another one, where it was recovered."""
    if spec.doubt is None:
        return None
    return bounds.attempt_capture("the search for other readings of the model's numbers", spec.doubt, spec.seconds)


def _as_one(asked: Asked, _: Report | None) -> Report:
    return verify_programs(asked.spec, asked.implementation, asked.options, Repairs(proves=_proves_by_ranks))


def _proves_by_ranks(spec: Program, implementation: Program) -> bool:
    """Whether a program is proved: as one for all ranks or, where it computes with the rank, as that of each rank."""
    if proves(spec, implementation):
        return True
    mesh = implementation.mesh
    if mesh is None or not implementation.coordinates or len(mesh.ranks) > EACH_UP_TO:
        return False
    try:
        each = [at_rank(implementation, place_at(position, mesh.shape)) for position in range(len(mesh.ranks))]
        return proves_cut_alike(*as_one_device(spec, mesh, each))
    except (OrderError, UnmergeableError):
        return False


def _may_differ(report: Report | None) -> bool:
    """Whether the program is not verified, and another form of it may be: random numbers are drawn in any form."""
    if report is None or report:
        return False
    return not (is_unproved(report) and report.findings[0].code == DRAWS)


def _why_each_rank(asked: Asked, known: Report | None) -> str:
    if known is None:
        return "the ranks run different programs"
    implementation = asked.implementation
    if not is_unproved(known) or implementation.each_rank is None or implementation.mesh is None:
        return ""
    is_cured = all(finding.code in _CURED_BY_NUMBERS for finding in known.findings)
    return "the program reads its rank, and what it computes of it need not be linear in it" if is_cured else ""


def _each_rank(asked: Asked, known: Report | None) -> Report | str | None:
    spec, implementation, options = asked.spec, asked.implementation, asked.options
    mesh, ranks = implementation.mesh, implementation.ranks
    assert mesh is not None
    if not ranks:
        assert implementation.each_rank is not None
        try:
            capture, seconds = implementation.each_rank, implementation.seconds
            captured_each = bounds.attempt_capture("the capture of each rank", capture, seconds)
        except Exception as error:  # noqa: BLE001 - the report stands, unproved: what fails here can accept nothing
            return f"the program was not captured as each rank: {type(error).__name__}: {error}"
        if isinstance(captured_each, RanOut):
            return captured_each.describe()
        if not captured_each:
            return None
        ranks = captured_each
    found = bounds.attempt("the proof of all ranks' programs as one", lambda: verify_ranks(spec, ranks, mesh, options))
    if not isinstance(found, RanOut):
        return found
    return found.describe() if known is not None else report_on_limit(found, spec, ranks, options)


def _with_held_numbers(asked: Asked, _: Report | None) -> Report | None:
    written = with_held_numbers(asked.spec, asked.implementation)
    return None if written is None else answer(OF_RANKS, Asked(*written, asked.options))


ONE_PROGRAM: Strategy[Asked] = Strategy(
    "one program for all ranks",
    lambda asked, _: "" if asked.implementation.ranks else "every rank runs it",
    _as_one,
)
EACH_RANK = Strategy("all ranks' programs as one of a single device", _why_each_rank, _each_rank)
OF_RANKS = (ONE_PROGRAM, EACH_RANK)
WITH_HELD_NUMBERS: Strategy[Asked] = Strategy(
    "the whole numbers that tensors hold, written out",
    lambda _, known: "a difference must be one with the numbers held" if _may_differ(known) else "",
    _with_held_numbers,
)
