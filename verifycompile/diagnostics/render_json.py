"""The report as JSON with stable names, without the certificate, which may be large and has its own ``to_json``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from verifycompile.diagnostics.finding import Counterexample, Finding, Sparse
from verifycompile.program import SourceLocation
from verifycompile.question import Question

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report, Stats

SCHEMA = 1
"""Raised whenever a name disappears or changes its meaning."""


def render_report(report: Report) -> str:
    """One JSON object, indented, keys in the order of the dataclasses."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "verdict": report.verdict.value,
            "question": _question(report.question),
            "relations": dict(report.relations),
            "findings": [finding_object(finding) for finding in report.findings],
            "assumptions": list(report.assumptions),
            "strategies": [dataclasses.asdict(tried) for tried in report.strategies],
            "second_look": None if report.second_look is None else dataclasses.asdict(report.second_look),
            "stats": _stats(report.stats),
        },
        indent=2,
    )


def finding_object(finding: Finding) -> Mapping[str, Any]:
    """A finding as JSON values."""
    counterexample = finding.counterexample
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "verdict": finding.verdict.value,
        "message": finding.message,
        "label": finding.label,
        "output": finding.output,
        "spec_location": _location(finding.spec_location),
        "impl_location": _location(finding.impl_location),
        "labels": [{"location": _location(label.location), "text": label.text} for label in finding.labels],
        "relation_found": finding.relation_found,
        "relation_expected": finding.relation_expected,
        "notes": list(finding.notes),
        "hint": finding.hint,
        "followers": finding.followers,
        "waived": finding.waived,
        "counterexample": None if counterexample is None else _counterexample(counterexample),
    }


def _location(location: SourceLocation | None) -> Mapping[str, Any] | None:
    return None if location is None else dataclasses.asdict(location)


def _counterexample(counterexample: Counterexample) -> Mapping[str, Any]:
    return {
        "output": counterexample.output,
        "index": list(counterexample.index),
        "rank": counterexample.rank,
        "spec_value": _number(counterexample.spec_value),
        "implementation_value": _number(counterexample.implementation_value),
        "seed": counterexample.seed,
        "detail": counterexample.detail,
        "premise": counterexample.premise,
        "mesh": dict(counterexample.mesh),
        "inputs": {name: _finite(value) for name, value in counterexample.inputs.items()},
    }


def _number(value: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return value if math.isfinite(value) else str(value)


def _finite(value: object) -> object:
    if isinstance(value, list):
        return [_finite(item) for item in cast("list[object]", value)]
    if isinstance(value, Sparse):
        elements = [{"index": list(index), "value": _finite(element)} for index, element in value.elements]
        return {"shape": list(value.shape), "elements": elements}
    return _number(value) if isinstance(value, float) else value


def _question(question: Question) -> Mapping[str, Any]:
    return {"spec": question.spec.value, "ranks": question.ranks.value, "count": question.count, "job": question.job}


def _stats(stats: Stats) -> Mapping[str, Any]:
    return {**dataclasses.asdict(stats), "capture_seconds": stats.capture_seconds, "ratio": stats.ratio}
