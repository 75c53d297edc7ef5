"""What a comparison of two runs came to."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import pathlib
from collections.abc import Sequence

from verifycompile.comparison.judge import Judged
from verifycompile.comparison.trace import Kind
from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.render_json import finding_object
from verifycompile.diagnostics.render_text import render_finding
from verifycompile.diagnostics.verdict import Verdict

_HEADINGS = {
    Verdict.VERIFIED: "compare: no difference beyond rounding on this input",
    Verdict.REFUTED: "compare: the programs differ beyond rounding",
    Verdict.UNPROVED: "compare: undecided",
}
_COLUMNS = ("tensor", "ratio", "error / norm", "threshold / norm", "spec", "parallel", "layout")
_SHADES = " .:-=+*#%@"
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class AssumptionState:
    """One assumption of a proof: ``measured`` on this run, or ``open``; and why."""

    text: str
    state: str
    why: str


@dataclasses.dataclass(frozen=True)
class CompareReport:
    """Both programs on one input, tensor by tensor. It rests on that input, and on tolerances that were estimated.

    ``verdict``: ``VERIFIED`` where every tensor that the spec ends with (outputs, gradients, updated parameters,
    buffers, optimizer state) was compared and is within its threshold; ``REFUTED`` where one is beyond it; else
    ``UNPROVED``. It never makes a program proved. ``tensors``: everything that was compared, in the spec's order.
    ``not_compared``: name -> why. ``notes``: losses of precision and random numbers. ``epsilons``: of the spec and of
    the parallel program. ``proof``: the assumptions of a proof, with what this run says of each.
    """

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    tensors: tuple[Judged, ...] = ()
    not_compared: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    how: str = ""
    ranks: int = 1
    epsilons: tuple[float, float] = (0.0, 0.0)
    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    proof: tuple[AssumptionState, ...] = ()
    contradiction: str = ""

    def __bool__(self) -> bool:
        return self.verdict is Verdict.VERIFIED

    @property
    def table(self) -> str:
        """A line for each tensor, the largest ratios first."""
        ordered = sorted(self.tensors, key=lambda item: -item.ratio)
        return _columns([_COLUMNS, *(_row(item) for item in ordered)])

    @property
    def heat(self) -> str:
        """Modules against ranks: the largest ratio of the tensors of each, as a shade and a number."""
        rows = _heat(self.tensors)
        if not rows:
            return ""
        ranks = sorted({rank for values in rows.values() for rank in values})
        lines: list[tuple[str, ...]] = [("module", *(f"rank {rank}" for rank in ranks))]
        for module, values in rows.items():
            cells = (f"{_shade(values[rank])} {_number(values[rank])}" if rank in values else "-" for rank in ranks)
            lines.append((module or "(the program)", *cells))
        return _columns(lines)

    def __str__(self) -> str:
        worst = max((item.ratio for item in self.tensors), default=0.0)
        lines = [
            _HEADINGS[self.verdict],
            (
                f" = compared: {len(self.tensors)} tensors on {self.ranks} ranks ({self.how}), largest ratio to its"
                f" threshold {_number(worst)}"
            ),
            (
                f" = thresholds: the spec's response to errors of {self.epsilons[0]:.3g} (its own machine epsilon) and"
                f" {self.epsilons[1]:.3g} (the parallel program's), largest of {self.seeds} seeds"
            ),
            f" = steps of the optimizer: {self.steps}; seconds: {self.seconds:.2f}",
            *(f" = contradiction: {text}" for text in ([self.contradiction] if self.contradiction else [])),
            *_first("note", self.notes, "notes"),
            *(f" = assumption: {assumption}" for assumption in self.assumptions),
            *_first("not compared", [f"`{name}`: {why}" for name, why in self.not_compared], "not_compared"),
        ]
        parts = ["\n".join(lines)]
        if self.proof:
            parts.append(_columns([("assumption of the proof", "state", "why"), *map(dataclasses.astuple, self.proof)]))
        if any(item.exceeds for item in self.tensors):
            parts.append(self.heat)
            beyond = [_row(item) for item in self.tensors if item.exceeds]
            parts.append(_columns([_COLUMNS, *beyond[:_SHOWN]]))
        return "\n\n".join([*parts, *map(render_finding, self.findings)])

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(
            {
                "verdict": self.verdict.value,
                "findings": [finding_object(finding) for finding in self.findings],
                "tensors": [_tensor_object(item) for item in self.tensors],
                "not_compared": dict(self.not_compared),
                "notes": list(self.notes),
                "assumptions": list(self.assumptions),
                "proof": [dataclasses.asdict(item) for item in self.proof],
                "contradiction": self.contradiction,
                "how": self.how,
                "ranks": self.ranks,
                "epsilons": list(self.epsilons),
                "seeds": self.seeds,
                "steps": self.steps,
                "seconds": self.seconds,
            },
            indent=2,
        )

    def save_html(self, path: str | pathlib.Path) -> None:
        """Write the report as one HTML file that needs nothing else. Raises ``OSError`` where it cannot be written."""
        title = html.escape(_HEADINGS[self.verdict])
        page = (
            f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n<style>td,th{{padding:2px 8px;'
            f"font:13px monospace;text-align:left}}</style>\n<pre>{html.escape(str(self))}</pre>\n"
            f"{_heat_table(self.tensors)}{_plot(self.tensors)}<pre>{html.escape(self.table)}</pre>\n"
        )
        pathlib.Path(path).write_text(page, encoding="utf-8")


def _first(what: str, texts: Sequence[str], attribute: str) -> list[str]:
    """A line for each, of which there may be one for each tensor; how many are left out is the last line."""
    rest = [f"{len(texts) - _SHOWN} more, listed in `{attribute}`"] if len(texts) > _SHOWN else []
    return [f" = {what}: {text}" for text in (*texts[:_SHOWN], *rest)]


def _row(item: Judged) -> tuple[str, ...]:
    norm = item.norm or 1.0
    return (
        item.name, _number(item.ratio), f"{item.error / norm:.2e}", f"{item.threshold / norm:.2e}", *item.dtypes,
        item.layout_text or item.detail,
    )  # fmt: skip


def _tensor_object(item: Judged) -> dict[str, object]:
    return {
        "name": item.name,
        "kind": item.kind.value,
        "module": item.module,
        "layout": item.layout_text,
        "error": _finite(item.error),
        "threshold": item.threshold,
        "norm": item.norm,
        "ratio": _finite(item.ratio),
        "by_rank": {str(rank): _finite(value) for rank, value in item.by_rank.items()},
        "dtypes": list(item.dtypes),
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _heat(tensors: tuple[Judged, ...]) -> dict[str, dict[int, float]]:
    rows: dict[str, dict[int, float]] = {}
    for item in tensors:
        row = rows.setdefault(item.module, {})
        for rank, ratio in item.by_rank.items():
            row[rank] = max(row.get(rank, 0.0), ratio)
    return rows


def _level(ratio: float) -> int:
    """0 for nothing, 3 at the threshold, a step for each factor of ten."""
    if ratio <= 0.0:
        return 0
    if math.isinf(ratio):
        return len(_SHADES) - 1
    return max(0, min(len(_SHADES) - 1, round(3 + 2 * math.log10(ratio))))


def _shade(ratio: float) -> str:
    return _SHADES[_level(ratio)]


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.2g}"


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _heat_table(tensors: tuple[Judged, ...]) -> str:
    rows = _heat(tensors)
    ranks = sorted({rank for values in rows.values() for rank in values})
    heading = "".join(f"<th>rank {rank}</th>" for rank in ranks)
    lines = [f"<table><tr><th>module</th>{heading}</tr>"]
    for module, values in rows.items():
        cells = "".join(_cell(values.get(rank)) for rank in ranks)
        lines.append(f"<tr><td>{html.escape(module or '(the program)')}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>\n"])


def _cell(ratio: float | None) -> str:
    if ratio is None:
        return "<td></td>"
    share = _level(ratio) / (len(_SHADES) - 1)
    color = f"hsl({round(120 * (1 - share))} 70% {round(92 - 30 * share)}%)"
    return f'<td style="background:{color}">{_number(ratio)}</td>'


def _plot(tensors: tuple[Judged, ...]) -> str:
    """Ratio by depth: a point for each activation in the order of the run; the line is the threshold."""
    shown = [item for item in tensors if item.kind in (Kind.ACTIVATION, Kind.OUTPUT, Kind.ACTIVATION_GRADIENT)]
    if not shown:
        return ""
    width, height = 900, 220
    points: list[str] = []
    for index, item in enumerate(shown):
        place = 10 + (width - 20) * index / max(1, len(shown) - 1)
        depth = (
            max(-4.0, min(6.0, math.log10(item.ratio))) if 0 < item.ratio < math.inf else (6.0 if item.ratio else -4.0)
        )
        color = "#c22" if item.exceeds else "#282"
        title = html.escape(f"{item.name}: {_number(item.ratio)}")
        circle = f'<circle cx="{place:.1f}" cy="{_height(depth, height):.1f}" r="3" fill="{color}">'
        points.append(f"{circle}<title>{title}</title></circle>")
    line = f'<line x1="0" x2="{width}" y1="{_height(0.0, height):.1f}" y2="{_height(0.0, height):.1f}" stroke="#888"/>'
    return f'<svg width="{width}" height="{height}">{line}{"".join(points)}</svg>\n'


def _height(depth: float, height: int) -> float:
    return height - 10 - (height - 20) * (depth + 4.0) / 10.0
