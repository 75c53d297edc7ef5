"""The report as one HTML file without scripts, styles or fonts from elsewhere.

Relations stand in a table for each part of the model, which can be closed; a field filters them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
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
summary { cursor: pointer; } input { font: inherit; width: 30rem; max-width: 100%; }
.verified { color: #18794e; } .refuted { color: #cd2b31; } .unproved { color: #ad5700; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee; } }
"""

_FILTER = """<input type="search" placeholder="show outputs that contain ..." aria-label="filter">
<script>
const field = document.querySelector("input");
field.addEventListener("input", () => {
  for (const part of document.querySelectorAll("details")) {
    const rows = [...part.querySelectorAll("tr.relation")];
    for (const row of rows) row.hidden = !row.textContent.includes(field.value);
    part.hidden = rows.every((row) => row.hidden);
  }
});
</script>"""


def render_report(report: Report) -> str:
    """A complete HTML document."""
    verdict = report.verdict.value
    body = [f'<h1>verifycompile: <span class="{verdict}">{verdict}</span></h1>', _list(statistics_lines(report))]
    if report.findings:
        findings = "\n".join(f"<pre>{html.escape(render_finding(finding))}</pre>" for finding in report.findings)
        body.append(f"<h2>Findings</h2>\n{findings}")
    if report.relations:
        body.append(f"<h2>Relations</h2>\n{_FILTER}\n{_relations(report.relations)}")
    if report.assumptions:
        body.append(f"<h2>Assumptions</h2>\n{_list(dict.fromkeys(report.assumptions))}")
    head = f'<meta charset="utf-8"><title>verifycompile: {verdict}</title><style>{_STYLE}</style>'
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{content}\n</body>\n</html>\n'


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"


def _relations(relations: Mapping[str, str]) -> str:
    parts: dict[str, list[str]] = {}
    for output, relation in relations.items():
        parts.setdefault(_part_of_model(output), []).append(_row(output, relation))
    header = "<tr><th>Spec output</th><th>Over the parallel program's outputs</th></tr>"
    return "\n".join(
        f"<details open><summary>{html.escape(part)} ({len(rows)})</summary>\n"
        f"<table>\n{header}\n{_lines(rows)}\n</table></details>"
        for part, rows in parts.items()
    )


def _part_of_model(output: str) -> str:
    """``layers.0`` of ``grad.layers.0.attention.wq.weight``: the name up to its first number, else its first word."""
    kind, _, name = output.partition(".")
    if kind not in ("grad", "mutation"):
        return "outputs"
    words = name.split(".")
    number = next((place for place, word in enumerate(words) if word.isdigit()), 0)
    return ".".join(words[: number + 1])


def _lines(items: Iterable[str]) -> str:
    return "\n".join(items)


def _row(output: str, relation: str) -> str:
    cells = "".join(f"<td><code>{html.escape(text)}</code></td>" for text in (output, relation))
    return f'<tr class="relation">{cells}</tr>'
