"""What the HTML report shows of both programs: a row for each value, by module, and what the proof relates it to.

The relations are found by proving the programs again, since a proof that nobody looks at need not keep them.
"""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile import bounds
from verifycompile.bounds import Limits, RanOut
from verifycompile.diagnostics.finding import Finding
from verifycompile.ir.term import Term, View
from verifycompile.lowering.lower import Lowering
from verifycompile.program import Program, ProgramOutput, SourceLocation
from verifycompile.refinement.candidates import infer
from verifycompile.refinement.check import Checker, check_with_values, new_pool
from verifycompile.refinement.memo import Repetition
from verifycompile.refinement.placement import describe, same_value
from verifycompile.rewrites.codes import code_of
from verifycompile.torch_interface.source_lines.model_lines import is_collective, model_location_of
from verifycompile.torch_interface.source_lines.source import is_of_backward, module_of
from verifycompile.torch_interface.source_lines.value_names import names_of_inputs, operator_of, value_name

LIMITS = Limits(seconds=30.0, memory=4 << 30)
"""Of the second proof. Where they end it, the page shows both programs without relations, and says so."""

_MAX_RELATED = 3
"""Values of the implementation that are shown for one of the spec: copies and waits hold the same value again."""

MAX_ROWS = 20_000
"""Of both programs. Modules beyond that are shown by their numbers of values alone, those that failed last of all."""

_CONTEXT = 4
"""Lines of source before and after each line that is shown."""


@dataclasses.dataclass
class Relations:
    """``of``: node of the spec -> nodes of the implementation that hold its value, each with the expression that gives
    it. ``lemmas``: node of either program -> codes of the lemmas that rewrote it. ``ended``: why there are none, or "".
    """

    of: dict[str, list[tuple[str, str]]] = dataclasses.field(default_factory=dict[str, list[tuple[str, str]]])
    lemmas: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = dataclasses.field(
        default_factory=lambda: ({}, {})
    )
    ended: str = ""


class _Unjudged(Checker):
    """Goes on where an output has no relation, and looks for no cause of it."""

    def _failure(self, failed: Sequence[tuple[ProgramOutput, ProgramOutput]]) -> None:  # noqa: ARG002 - an attempt is told
        return


def relations_of(spec: Program, implementation: Program, *, proved: bool) -> Relations:
    """Which values of both programs the proof relates; nodes are named as in their graphs."""
    with bounds.limited(LIMITS) as limited:
        found = limited.attempt("the relations of the report's page", lambda: _relations(spec, implementation, proved))
    return Relations(ended=found.describe()) if isinstance(found, RanOut) else found


def _relations(spec: Program, implementation: Program, proved: bool) -> Relations:
    steps: tuple[object, ...] = ()
    if proved:
        result, checker = check_with_values(spec, implementation)
        steps = result.steps
    else:
        checker = _Unjudged(spec, implementation, new_pool(implementation))
        checker.run()
    names = names_of_inputs(implementation)
    holders: dict[Term, list[torch.fx.Node]] = {}
    for node, value in checker.implementation.values.items():
        if isinstance(value, View):
            holders.setdefault(value.term, []).append(node)
    found = Relations(lemmas=(_lemmas(checker.spec), _lemmas(checker.implementation)))
    for node, value in checker.spec.values.items():
        if not isinstance(value, View):
            continue
        related = ((other.name, _relation(checker, value, other, names)) for other in holders.get(value.term, ()))
        found.of[node.name] = list(itertools.islice((pair for pair in related if pair[1]), _MAX_RELATED))
    for part in steps:
        if isinstance(part, Repetition):
            _repeat(found, part)
    return found


def _relation(checker: Checker, value: View, other: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    """The expression over a value of the implementation that gives one of the spec; "" where none is found."""
    held = checker.implementation.values[other]
    assert isinstance(held, View)
    mesh, name = checker.implementation.program.mesh, value_name(other, names)
    if mesh is None:
        return name if same_value(value, held) else ""
    placements = infer(checker.pool, value, held, mesh)
    return "" if placements is None else describe(name, placements, mesh)


def _lemmas(lowering: Lowering) -> dict[str, tuple[str, ...]]:
    return {node.name: tuple(dict.fromkeys(code_of(use) for use, _ in uses)) for node, uses in lowering.lemmas.items()}


def _repeat(found: Relations, part: Repetition) -> None:
    """What is known of an earlier part holds for the nodes of this one."""
    count = part.spec_nodes
    renamed = dict(zip(part.of[count:], part.nodes[count:], strict=True))
    for node, of in zip(part.nodes[:count], part.of[:count], strict=True):
        found.of[node] = [(renamed[other], text) for other, text in found.of.get(of, ()) if other in renamed]
    for side, places in ((0, slice(0, count)), (1, slice(count, None))):
        for node, of in zip(part.nodes[places], part.of[places], strict=True):
            found.lemmas[side][node] = found.lemmas[side].get(of, ())


# --------------------------------------------------------------------------------------------------------------- rows


def page_data(spec: Program, implementation: Program, findings: Sequence[Finding]) -> dict[str, Any]:
    """Modules with the rows of both programs, and the lines of source that they name, as JSON has it."""
    relations = relations_of(spec, implementation, proved=not findings)
    lines = _Lines(frozenset(_places(findings)))
    sides = [_rows(program, lines, relations.lemmas[number]) for number, program in enumerate((spec, implementation))]
    for row in sides[0]:
        row["related"] = relations.of.get(row["name"], [])
    modules: dict[str, dict[str, Any]] = {}
    for side, rows in zip(("spec", "implementation"), sides, strict=True):
        for row in rows:
            name = row.pop("module")
            entry = modules.setdefault(name, {"name": name, "spec": [], "implementation": []})
            entry[side].append(row)
    _leave_out(list(modules.values()))
    return {
        "modules": list(modules.values()),
        "files": lines.files,
        "source": lines.source(),
        "ended": relations.ended,
        "most": MAX_ROWS,
    }


def _leave_out(modules: list[dict[str, Any]]) -> None:
    """Counts the values of each module, and takes the rows of those that are too many for a page."""
    rows = 0
    for module in sorted(modules, key=lambda module: not any(row["failed"] for row in _rows_of(module))):
        related = sum(bool(row["related"]) for row in module["spec"])
        module["counts"] = (len(module["spec"]), related, len(module["implementation"]))
        if rows + len(_rows_of(module)) > MAX_ROWS:
            module["spec"], module["implementation"] = [], []
        rows += len(_rows_of(module))


def _rows_of(module: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*module["spec"], *module["implementation"]]


def collectives(implementation: Program) -> list[tuple[str, str, int, int]]:
    """Of each module and collective: how many there are, and the bytes that one rank holds of their results."""
    found: dict[tuple[str, str], list[int]] = {}
    for node in implementation.graph.graph.nodes:
        if is_collective(node):
            found.setdefault((_module(node), operator_of(node)), []).append(_bytes(node.meta.get("val")))
    return [(module, kind, len(sizes), sum(sizes)) for (module, kind), sizes in found.items()]


def _rows(program: Program, lines: _Lines, lemmas: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    names = names_of_inputs(program)
    rows: list[dict[str, Any]] = []
    for node in program.graph.graph.nodes:
        if node.op == "output":
            continue
        place = model_location_of(node)
        rows.append({
            "module": "inputs and parameters" if node.op == "placeholder" else _module(node),
            "name": node.name,
            "text": value_name(node, names),
            "operator": "" if node.op == "placeholder" else operator_of(node),
            "type": _type(node.meta.get("val")),
            "place": None if place is None else lines.note(place),
            "failed": place is not None and lines.is_failed(place),
            "lemmas": lemmas.get(node.name, ()),
        })  # fmt: skip
    return rows


def _module(node: torch.fx.Node) -> str:
    name = module_of(node) or "outside of modules"
    return f"{name}, backward" if is_of_backward(node) else name


def _type(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return ""
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def _bytes(value: object) -> int:
    """Of what a collective returns; of a symbolic size the value it was traced with."""
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(int(size) for size in value.shape) * value.itemsize


def _places(findings: Sequence[Finding]) -> list[tuple[str, int, int]]:
    found = [place for f in findings for place in (f.impl_location, f.spec_location) if place is not None]
    return [(place.file, place.line, place.column) for place in found]


class _Lines:
    """The lines of source that rows name. ``failed``: where the findings point, as file, line and column."""

    def __init__(self, failed: frozenset[tuple[str, int, int]]) -> None:
        self._failed = failed
        self._lines: dict[str, set[int]] = {}

    @property
    def files(self) -> list[str]:
        """Rows name a file by its position here."""
        return list(self._lines)

    def note(self, place: SourceLocation) -> tuple[int, int]:
        around = range(max(1, place.line - _CONTEXT), place.line + _CONTEXT + 1)
        self._lines.setdefault(place.file, set()).update(around)
        return self.files.index(place.file), place.line

    def is_failed(self, place: SourceLocation) -> bool:
        return (place.file, place.line, place.column) in self._failed

    def source(self) -> list[dict[int, str]]:
        """For each file the number of a line -> its text, of the lines noted and those around them."""
        texts = {file: linecache.getlines(file) for file in self._lines}
        return [
            {line: texts[file][line - 1].rstrip("\n") for line in sorted(lines) if line <= len(texts[file])}
            for file, lines in self._lines.items()
        ]
