"""The report as one HTML file without scripts, styles or fonts from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from verifycompile.diagnostics.describe import statistics_lines
from verifycompile.diagnostics.render_text import render_finding

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
pre { background: #8881; overflow-x: auto; padding: 1rem; }
table { border-collapse: collapse; }
td, th { border-bottom: 1px solid #8884; padding: .25rem 1rem .25rem 0; text-align: left; vertical-align: top; }
.verified { color: #18794e; } .refuted { color: #cd2b31; } .unproved { color: #ad5700; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee; } }
"""


def render_report(report: Report) -> str:
    """A complete HTML document."""
    verdict = report.verdict.value
    body = [f'<h1>verifycompile: <span class="{verdict}">{verdict}</span></h1>', _list(statistics_lines(report))]
    if report.findings:
        findings = "\n".join(f"<pre>{html.escape(render_finding(finding))}</pre>" for finding in report.findings)
        body.append(f"<h2>Findings</h2>\n{findings}")
    if report.relations:
        rows = "\n".join(_row(output, relation) for output, relation in report.relations.items())
        header = "<tr><th>Spec output</th><th>Over the parallel program's outputs</th></tr>"
        body.append(f"<h2>Relations</h2>\n<table>\n{header}\n{rows}\n</table>")
    if report.assumptions:
        body.append(f"<h2>Assumptions</h2>\n{_list(dict.fromkeys(report.assumptions))}")
    head = f'<meta charset="utf-8"><title>verifycompile: {verdict}</title><style>{_STYLE}</style>'
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{content}\n</body>\n</html>\n'


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"


def _row(output: str, relation: str) -> str:
    return f"<tr><td><code>{html.escape(output)}</code></td><td><code>{html.escape(relation)}</code></td></tr>"
