"""Findings of a report that was written as JSON, so that another process can render them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.render_json import SCHEMA
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.program import SourceLocation


def findings_of(text: str) -> tuple[Finding, ...]:
    """The findings of ``Report.to_json()``, without their counterexamples.

    Raises ``ValueError`` for text of another schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"the report is not of schema {SCHEMA}")
    return tuple(_finding(item) for item in data["findings"])


def _finding(data: Mapping[str, Any]) -> Finding:
    plain = ("code", "message", "label", "output", "relation_found", "relation_expected", "hint", "followers", "waived")
    return Finding(
        **{name: data[name] for name in plain},
        severity=Severity(data["severity"]),
        verdict=Verdict(data["verdict"]),
        spec_location=_location(data["spec_location"]),
        impl_location=_location(data["impl_location"]),
        labels=tuple(Label(SourceLocation(**label["location"]), label["text"]) for label in data["labels"]),
        notes=tuple(data["notes"]),
    )


def _location(data: Mapping[str, Any] | None) -> SourceLocation | None:
    return None if data is None else SourceLocation(**data)
