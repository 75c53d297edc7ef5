"""The report as one HTML file that needs nothing else: findings, both programs side by side, and what was assumed."""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch.distributed.tensor.placement_types import Placement

from verifycompile.diagnostics.describe import describe_difference, statistics_lines
from verifycompile.diagnostics.finding import Counterexample, Sparse
from verifycompile.diagnostics.page_programs import collectives, page_data
from verifycompile.diagnostics.render_text import render_finding
from verifycompile.rewrites.documentation import entry
from verifycompile.torch_interface.dtensor.placements import outer_blocks, sharded_dimension

if TYPE_CHECKING:
    from verifycompile.diagnostics.report import Report

_MAX_NUMBERS = 96
"""Of a counterexample's inputs; more are not read by anyone."""

_CONTROLS = """<p><input type="search" id="filter" placeholder="show values that contain ..." aria-label="filter">
<label><input type="checkbox" id="only-failed"> only what failed</label> <span id="found"></span></p>
<div id="modules"></div><div id="source"></div>"""


def render_report(report: Report) -> str:
    """A complete HTML document. Where the report holds both programs, they are proved again for it."""
    verdict = report.verdict.value
    body = [f'<h1>verifycompile: <span class="{verdict}">{verdict}</span></h1>', _list(statistics_lines(report))]
    if report.findings:
        findings = "\n".join(f"<pre>{html.escape(render_finding(finding))}</pre>" for finding in report.findings)
        body.append(f"<h2>Findings</h2>\n{findings}")
    if report.counterexample is not None:
        placed = {} if report.programs is None else {i.name: i.placements for i in report.programs[1].inputs}
        body.append(f"<h2>Counterexample</h2>\n{_counterexample(report.counterexample, placed)}")
    data = None if report.programs is None else page_data(*report.programs, report.findings)
    if data is not None:
        body += _programs(data)
    if report.programs is not None and (sent := collectives(report.programs[1])):
        body.append("<h2>Collectives</h2>\n" + _table(("Module", "Collective", "Calls", "Bytes on one rank"), sent))
    if report.relations:
        body.append(f"<h2>Outputs</h2>\n{_relations(report.relations)}")
    if report.assumptions:
        body.append(f"<h2>Assumptions</h2>\n{_list(dict.fromkeys(report.assumptions))}")
    if data is not None:
        body += _lemmas_and_script(data)
    head = f'<meta charset="utf-8"><title>verifycompile: {verdict}</title><style>{_file("page.css")}</style>'
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{content}\n</body>\n</html>\n'


def _file(name: str) -> str:
    return importlib.resources.files("verifycompile.diagnostics").joinpath(name).read_text(encoding="utf-8")


def _programs(data: Mapping[str, Any]) -> Iterable[str]:
    yield "<h2>Both programs</h2>"
    if data["ended"]:
        yield f"<p>No relations are shown: {html.escape(data['ended'])}.</p>"
    yield _CONTROLS


def _lemmas_and_script(data: Mapping[str, Any]) -> Iterable[str]:
    rows = [row for module in data["modules"] for side in ("spec", "implementation") for row in module[side]]
    used = sorted({code for row in rows for code in row["lemmas"]})
    if used:
        yield "<h2>Lemmas</h2>"
        yield from (f'<pre id="{code}">{html.escape(_lemma(code))}</pre>' for code in used)
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    yield f'<script type="application/json" id="programs-data">{text}</script>'
    yield f"<script>{_file('page.js')}</script>"


def _lemma(code: str) -> str:
    try:
        return entry(code)
    except ValueError:
        return code


def _counterexample(counterexample: Counterexample, placed: Mapping[str, Sequence[Placement] | None]) -> str:
    """What differs, and the numbers of each input that are not 0, where they are few, with the ranks that hold them."""
    lines = [line for line in (describe_difference(counterexample), counterexample.premise) if line]
    found = {name: list(_numbers(value)) for name, value in counterexample.inputs.items()}
    if sum(map(len, found.values())) > _MAX_NUMBERS:
        return _list([*lines, f"the inputs are those of seed {counterexample.seed}"])
    tables: list[str] = []
    for name, numbers in found.items():
        shape, placements = _shape(counterexample.inputs[name]), placed.get(name)
        rows = [(list(index), value, _ranks(index, shape, placements, counterexample.mesh)) for index, value in numbers]
        if rows:
            table = _table(("Index", "Value", "Ranks"), rows)
            tables.append(f"<div><h3><code>{html.escape(name)}</code></h3>{table}</div>")
    return f'{_list(lines)}\n<p>Everything else is 0.</p>\n<div class="numbers">{"".join(tables)}</div>'


def _numbers(value: object, index: tuple[int, ...] = ()) -> Iterable[tuple[tuple[int, ...], object]]:
    if isinstance(value, Sparse):
        yield from value.elements
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[object]", value)):
            yield from _numbers(item, (*index, place))
    elif value and not isinstance(value, str):
        yield index, value


def _shape(value: object) -> tuple[int, ...]:
    if isinstance(value, Sparse):
        return value.shape
    if not isinstance(value, list):
        return ()
    items = cast("list[object]", value)
    return (len(items), *(_shape(items[0]) if items else ()))


def _ranks(
    index: Sequence[int], shape: Sequence[int], placements: Sequence[Placement] | None, mesh: Mapping[str, int]
) -> str:
    """Which ranks hold an element, as coordinates over the mesh; "" where that is not known."""
    if placements is None or len(placements) != len(mesh):
        return ""
    coordinates: list[str] = []
    first, size = [0] * len(shape), list(shape)
    for (axis, count), placement in zip(mesh.items(), placements, strict=True):
        dimension = sharded_dimension(placement)
        if dimension is None:
            continue
        if outer_blocks(placement) > 1 or size[dimension] % count:
            return ""
        size[dimension] //= count
        part = (index[dimension] - first[dimension]) // size[dimension]
        first[dimension] += part * size[dimension]
        coordinates.append(f"{axis}={part}")
    return ", ".join(coordinates) or "all"


def _list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"


def _relations(relations: Mapping[str, str]) -> str:
    """A table for each part of the model, which can be closed."""
    parts: dict[str, list[tuple[str, str]]] = {}
    for output, relation in relations.items():
        parts.setdefault(_part_of_model(output), []).append((output, relation))
    header = ("Spec output", "Over the parallel program's outputs")
    return "\n".join(
        f"<details{' open' if len(parts) < 8 else ''}><summary>{html.escape(part)} ({len(rows)})</summary>\n"
        f"{_table(header, rows)}</details>"
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


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = "\n".join(
        "<tr>" + "".join(f"<td><code>{html.escape(str(cell))}</code></td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{lines}\n</table>"
