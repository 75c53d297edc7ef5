"""What the plan of ``parallelize_module`` says of the modules that a finding is about.

A plan leaves the code of a model as it is. So a line that the spec runs too is right, and what is wrong there is the
layout that the plan gives to a module: the finding then points at the line that makes the style.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.captured_notes import ModuleStyle
from verifycompile.diagnostics.codes import OWN_PART_CODES
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.program import Program
from verifycompile.torch_interface.source_lines.source import at_line, lines_of

_OF_LAYOUTS = frozenset({"VC102", "VC104"})
"""Codes of mismatches that a layout in a plan may be the cause of."""
_OF_PARTS = frozenset({"VC104", *OWN_PART_CODES})
"""Codes of mismatches that a module's result may be the cause of, of which the plan leaves each rank a part."""


def with_styles(finding: Finding, spec: Program, implementation: Program) -> Finding:
    """The finding, with what the plan says of the modules that it is about, at the line of the style that says it.

    A result that the plan leaves a partial sum, or leaves in parts; a layout that an input does not have; a parameter
    of a module without a style, though another module of its class has one.
    """
    beside = implementation.beside
    told = None if beside is None else next(_told(finding, beside.styles), None)
    if told is None:
        return finding
    style, text = told
    place, line = finding.impl_location, style.line
    is_of_model = place is None or at_line(place) not in lines_of(spec.graph.graph)
    # Of a partial sum the lines of the model that need it whole, and that made it one, say more than the plan's.
    if line is None or place is None or is_of_model or finding.code == "VC101":
        return finding.noted(text)
    labels = Label(place, finding.label or finding.message), *finding.labels
    line = dataclasses.replace(line, module=place.module)
    return dataclasses.replace(finding, impl_location=line, message=text, label=text, labels=labels)


def _told(finding: Finding, styles: Mapping[str, ModuleStyle]) -> Iterator[tuple[ModuleStyle, str]]:
    """Styles that may be what is wrong, the likeliest first, with what is said of each."""
    place = finding.impl_location
    kind, _, name = finding.output.partition(".")
    module = name.rpartition(".")[0]
    if finding.code == "VC101" and kind == "grad" and module in styles and not styles[module].name:
        for path, other in styles.items():
            if other.kind == styles[module].kind and other.name:
                of_other = f"`{path}`, of the same class, has `{other.name}`"
                yield styles[module], f"`{module}` has no style in the plan; {of_other}"
        return
    style = None if place is None else styles.get(place.module)
    if place is not None and style is not None and style.inputs and finding.code in _OF_LAYOUTS:
        text = _given(place.module, style, "input_layouts", style.inputs)
        yield style, f"{text}, which says how the ranks hold its input"
    near = {place.module for place in (place, *(label.location for label in finding.labels)) if place is not None}
    made_by = {*finding.modules, *(near if finding.code == "VC101" else ())}
    for path, style in styles.items():
        if made_by.isdisjoint((path, path.rpartition(".")[0])):
            continue
        if finding.code == "VC101" and any(isinstance(layout, Partial) for layout in style.layouts):
            text = f"{_given(path, style, 'output_layouts', style.layouts)}, which leaves its result a partial sum"
            yield style, f"{text}; with `Replicate()` the style all-reduces it"
        is_made_there = path in finding.modules and (place is None or path != place.module)
        if finding.code in _OF_PARTS and is_made_there and any(isinstance(layout, Shard) for layout in style.layouts):
            text = (
                f"{_given(path, style, 'output_layouts', style.layouts)}, which leaves each rank a part of its result"
            )
            yield style, f"{text}; with `Replicate()` the style gathers it"


def _given(path: str, style: ModuleStyle, argument: str, layouts: tuple[Placement, ...]) -> str:
    return f"the plan gives `{path}` the style `{style.name}` with `{argument}={', '.join(map(_spelled, layouts))}`"


def _spelled(placement: Placement) -> str:
    """A placement as a plan spells it."""
    if isinstance(placement, Shard):
        return f"Shard({placement.dim})"
    return "Replicate()" if isinstance(placement, Replicate) else "Partial()"
