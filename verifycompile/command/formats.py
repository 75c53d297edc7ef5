"""What came of a job, in the formats that people and other programs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from verifycompile.command.job import Job
from verifycompile.diagnostics import render_concise, render_github, render_sarif, render_text
from verifycompile.diagnostics.render_json import finding_object

SCHEMA = 1
"""Raised whenever a name of the JSON form disappears or changes its meaning."""


def _json(job: Job) -> str:
    frames = [{**frame.record, "findings": [finding_object(f) for f in frame.findings]} for frame in job.frames]
    return json.dumps({"schema": SCHEMA, "script_status": job.status, "frames": frames}, indent=2)


FORMATS: Mapping[str, Callable[[Job], str]] = {
    "full": lambda job: "\n\n".join(map(render_text.render_finding, job.findings)),
    "concise": lambda job: "\n".join(map(render_concise.render_finding, job.findings)),
    "json": _json,
    "github": lambda job: "\n".join(map(render_github.render_finding, job.findings)),
    "sarif": lambda job: render_sarif.render_findings(job.findings),
}
"""Name of the format -> what it prints; the empty string where there is nothing to say."""

DOCUMENTS = frozenset({"json", "sarif"})
"""Formats of which standard output must hold nothing else."""
