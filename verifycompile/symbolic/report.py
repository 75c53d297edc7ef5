"""What a comparison element by element came to."""

from __future__ import annotations

import dataclasses
import html
import json
import pathlib

from verifycompile.diagnostics.finding import Finding
from verifycompile.diagnostics.render_json import finding_object
from verifycompile.diagnostics.render_text import render_finding
from verifycompile.diagnostics.verdict import Verdict

_HEADINGS = {
    Verdict.VERIFIED: "cross-check: equal element by element",
    Verdict.REFUTED: "cross-check: the programs differ",
    Verdict.UNPROVED: "cross-check: undecided",
}
_COLUMNS = ("output", "elements", "same", "z3", "different", "undecided", "placements")


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """One output of the spec: how many elements are the same expression, proved equal by z3, different or undecided.

    ``placements``: under which the ranks' values were assembled. ``detail``: why it was not compared.
    """

    name: str
    elements: int = 0
    same: int = 0
    proved: int = 0
    different: int = 0
    undecided: int = 0
    placements: str = ""
    detail: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether all elements were compared, and are equal."""
        return not self.detail and self.same + self.proved == self.elements


@dataclasses.dataclass(frozen=True)
class CrossCheckReport:
    """A second opinion on two programs. It rests on other grounds than the proof, and on one choice of sizes.

    ``verdict``: ``VERIFIED`` where all elements of all outputs are equal at these sizes, ``REFUTED`` where a concrete
    input shows a difference, else ``UNPROVED``. ``sizes``: which sizes were reduced, and to what. ``questions``: that
    z3 was asked. ``assumptions``: of the capture.
    """

    verdict: Verdict
    outputs: tuple[OutputCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    sizes: str = ""
    ranks: int = 1
    questions: int = 0
    seconds: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.verdict is Verdict.VERIFIED

    @property
    def table(self) -> str:
        """A line for each output."""
        rows = [_COLUMNS, *(_row(output) for output in self.outputs)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def __str__(self) -> str:
        where = f"{self.ranks} ranks, {self.sizes or 'at their own sizes'}"
        lines = [
            _HEADINGS[self.verdict],
            f" = compared: {where}",
            f" = questions to z3: {self.questions}; seconds: {self.seconds:.2f}",
            *(f" = assumption: {assumption}" for assumption in self.assumptions),
        ]
        parts = ["\n".join(lines), *([self.table] if self.outputs else []), *map(render_finding, self.findings)]
        return "\n\n".join(parts)

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(
            {
                "verdict": self.verdict.value,
                "outputs": [dataclasses.asdict(output) for output in self.outputs],
                "findings": [finding_object(finding) for finding in self.findings],
                "sizes": self.sizes,
                "ranks": self.ranks,
                "questions": self.questions,
                "seconds": self.seconds,
                "assumptions": list(self.assumptions),
            },
            indent=2,
        )

    def save_html(self, path: str | pathlib.Path) -> None:
        """Write the report as one HTML file that needs nothing else. Raises ``OSError`` where it cannot be written."""
        title = html.escape(_HEADINGS[self.verdict])
        page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n<pre>{html.escape(str(self))}</pre>\n'
        pathlib.Path(path).write_text(page, encoding="utf-8")


def _row(output: OutputCheck) -> tuple[str, ...]:
    counts = (output.elements, output.same, output.proved, output.different, output.undecided)
    if output.detail:
        return (output.name, *("-" for _ in counts), output.detail)
    return (output.name, *map(str, counts), output.placements)
