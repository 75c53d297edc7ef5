"""SARIF 2.1.0, the subset that code-scanning interfaces read: rules, results, places."""

from __future__ import annotations

import json
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifycompile.diagnostics.codes import CODES
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.render_concise import heading
from verifycompile.diagnostics.source_text import display_path
from verifycompile.program import SourceLocation

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_report(report: Report) -> str:
    """One SARIF log with one run; no results for a verified report."""
    return render_findings(report.findings)


def render_findings(findings: Sequence[Finding]) -> str:
    """One SARIF log with one run of these findings, of one report or of several."""
    codes = sorted({finding.code for finding in findings})
    driver = {"name": "verifycompile", "rules": [_rule(code) for code in codes]}
    run = {"tool": {"driver": driver}, "results": [_result(finding) for finding in findings]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str) -> Mapping[str, Any]:
    entry = CODES[code]
    return {
        "id": code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.meaning},
        "help": {"text": entry.fix},
    }


def _result(finding: Finding) -> Mapping[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": finding.severity.value,
        "message": {"text": heading(finding)},
    }
    if (location := finding.location) is not None:
        result["locations"] = [_place(location, finding.label)]
    if finding.labels:
        result["relatedLocations"] = [_place(label.location, label.text) for label in finding.labels]
    return result


def _place(location: SourceLocation, text: str) -> Mapping[str, Any]:
    region: dict[str, Any] = {"startLine": location.line, "startColumn": location.column}
    if location.end_column is not None:
        region["endColumn"] = location.end_column
    path = pathlib.Path(display_path(location.file))
    uri = path.as_uri() if path.is_absolute() else urllib.parse.quote(path.as_posix())
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
    if text:
        place["message"] = {"text": text}
    return place
