"""Sentences that several renderers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from verifycompile.diagnostics.codes import CODES, UNPROVED_CODES
from verifycompile.diagnostics.finding import Counterexample, Finding, Sparse
from verifycompile.diagnostics.verdict import Verdict

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

SUSPECTED = " (suspected)"
"""What follows the title of an error that no concrete input shows."""

MAX_ASSUMPTIONS = 8
MAX_ASSUMPTION = 400
MAX_INLINE_ELEMENTS = 48


def title_of(finding: Finding) -> str:
    """The title of a finding's code, as far as its verdict goes: certain, suspected, or about the proof."""
    code = CODES[finding.code]
    if finding.verdict is Verdict.REFUTED:
        return code.certain_title or code.title
    speaks_of_proof = finding.code in UNPROVED_CODES or code.certain_title or not finding.code.startswith("VC1")
    return code.title if speaks_of_proof else code.title + SUSPECTED


def finding_notes(finding: Finding) -> tuple[str, ...]:
    """What is known about a finding besides its labels: relations, output, module, followers."""
    notes = list(finding.notes)
    if finding.waived:
        notes.append(f"waived: {finding.waived}")
    if finding.relation_expected:
        notes.append(f"relation expected: {finding.relation_expected}")
    if finding.relation_found:
        notes.append(f"relation found: {finding.relation_found}")
    if (where := _where(finding)) != "":
        notes.append(where)
    if finding.followers:
        verb = "follows" if finding.followers == 1 else "follow"
        notes.append(f"{plural(finding.followers, 'more output or node')} without a relation {verb} from this")
    return tuple(notes)


def _where(finding: Finding) -> str:
    parts: list[str] = []
    if finding.output:
        parts.append(f"output `{finding.output}`")
    if (location := finding.location) is not None and location.module:
        parts.append(f"module `{location.module}`")
    return ", ".join(parts)


def plural(count: int, noun: str) -> str:
    """``1 relation``, ``2 relations``; of ``output or node`` both nouns take the ending."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} " + " or ".join(f"{word}s" for word in noun.split(" or "))


def counterexample_lines(counterexample: Counterexample) -> list[str]:
    """What differs, then the inputs where they are few enough to read."""
    inputs = counterexample.inputs
    shown = sum(_count(value) for value in inputs.values()) <= MAX_INLINE_ELEMENTS
    ranks = ", ".join(f"{name}={size}" for name, size in counterexample.mesh.items())
    where = ranks if shown and ranks else f"seed {counterexample.seed}"
    lines = [f"counterexample ({where}): {describe_difference(counterexample)}"]
    if counterexample.premise:
        lines.append(counterexample.premise)
    if not shown or not inputs:
        return lines
    told = {name: value for name, value in inputs.items() if _is_set(value)}
    lines += [line for name, value in told.items() for line in _input_lines(name, value)]
    if len(told) < len(inputs) or any(isinstance(value, Sparse) for value in told.values()):
        lines.append("everything else is 0" if told else "all inputs are 0")
    return lines


def _input_lines(name: str, value: object) -> list[str]:
    if not isinstance(value, Sparse):
        return [f"{name} = {_nested(value)}"]
    return [", ".join(f"{name}{list(index)} = {_nested(element)}" for index, element in value.elements)]


def _is_set(value: object) -> bool:
    """Whether an input has an element that is not 0."""
    if isinstance(value, list):
        return any(_is_set(item) for item in cast("list[object]", value))
    return bool(value.elements) if isinstance(value, Sparse) else bool(value)


def describe_difference(counterexample: Counterexample) -> str:
    """Which output differs where, and the two values."""
    place = f"`{counterexample.output}`"
    if math.isnan(counterexample.spec_value):
        return f"{place} has another shape than in the spec: {counterexample.detail}"
    if counterexample.index:
        place += f" at {list(counterexample.index)}"
    spec, implementation = _number(counterexample.spec_value), _number(counterexample.implementation_value)
    detail = f" ({counterexample.detail})" if counterexample.detail else ""
    return f"{place} is {spec} in the spec, {implementation} on rank {counterexample.rank}{detail}"


def _count(value: object) -> int:
    """Numbers other than 0; what is only summarized is never inline."""
    if isinstance(value, list):
        return sum(_count(item) for item in cast("list[object]", value))
    if isinstance(value, Sparse):
        return len(value.elements)
    return MAX_INLINE_ELEMENTS + 1 if isinstance(value, str) else int(bool(value))


def _number(value: float) -> str:
    """Six significant digits, no trailing zeros."""
    return f"{value:.6g}"


def _nested(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_nested(item) for item in cast('list[object]', value))}]"
    return _number(value) if isinstance(value, float) else str(value)


def assumption_lines(assumptions: Sequence[str]) -> list[str]:
    """Each assumption once, the first ``MAX_ASSUMPTIONS`` of them; of what lists more than a line holds, the first."""
    distinct = [_cut(text) for text in dict.fromkeys(assumptions)]
    if len(distinct) <= MAX_ASSUMPTIONS:
        return distinct
    return [*distinct[: MAX_ASSUMPTIONS - 1], f"{len(distinct) - MAX_ASSUMPTIONS + 1} more: see `report.assumptions`"]


def _cut(text: str) -> str:
    if len(text) <= MAX_ASSUMPTION:
        return text
    return f"{text[: text.rfind(' ', 0, MAX_ASSUMPTION)]} … (in full: `report.assumptions`)"


def statistics_lines(report: Report) -> list[str]:
    """The question, relations, nodes and seconds, a line each."""
    stats, counts = report.stats, report.stats.counts
    ratio = "" if stats.ratio is None else f", ratio {stats.ratio:.2f}"
    means = f"memo {counts.memo}, normal form {counts.normal_form}, ring {counts.ring}"
    means = f"{means}, e-graph {counts.egraph}, solver {counts.solver}"
    capture = f"{stats.spec_capture_seconds:.2f} (spec) + {stats.implementation_capture_seconds:.2f} (implementation)"
    return [
        f"compared: {report.question.describe()}",
        f"relations: {len(report.relations)}, over the real numbers (rounding is outside of the proof)",
        f"nodes: spec {stats.spec_nodes}, implementation {stats.implementation_nodes}; proved by {means}",
        f"seconds: capture {capture}, verification {stats.verification_seconds:.2f}{ratio}",
        *([] if report.second_look is None else [f"second look: {report.second_look.text}"]),
    ]
