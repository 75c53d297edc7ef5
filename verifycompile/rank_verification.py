"""The report on ranks that run different graphs: every rank's graph, checked together against the spec."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile import bounds
from verifycompile.bounds import RanOut
from verifycompile.capture.all_ranks import EACH_UP_TO
from verifycompile.capture.at_rank import at_rank
from verifycompile.capture.held_numbers import with_held_numbers
from verifycompile.capture.in_parts import in_parts
from verifycompile.capture.legacy_collectives import ranks_of
from verifycompile.capture.merged_collectives import UnmergeableError
from verifycompile.capture.merged_ranks import (
    ON_RANK,
    MergedRanks,
    RankProgram,
    assemble,
    coordinates,
    merge_ranks,
    with_outputs,
)
from verifycompile.capture.rank_schedule import OrderError, RankGraph, schedule
from verifycompile.cause.rank_graphs import RankGraphs
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.locate import helper_labels, place_of
from verifycompile.diagnostics.report import Report, Stats
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.options import Options
from verifycompile.program import Blocker, Mesh, OutputKind, Program
from verifycompile.question import Question
from verifycompile.rank_counterexamples import on_their_ranks
from verifycompile.rank_evidence import with_rank_evidence
from verifycompile.reduction.search import programs_to_evaluate
from verifycompile.refinement.dtensor_shards import misread_shards
from verifycompile.refinement.placement import describe
from verifycompile.torch_interface.elements import real_tensors
from verifycompile.torch_interface.mesh import line_through
from verifycompile.torch_interface.value_names import operator_of, value_name
from verifycompile.verification import Repairs, finding_of_limit, finding_of_mismatch, proves, verify_programs
from verifycompile.within_limits import within_limits
from verifycompile.witness import EvaluationError
from verifycompile.witness.evaluate import values_on_one_input
from verifycompile.witness.layout import reduce

Placements = tuple[Placement, ...]

Value = TypeVar("Value")

_TOLERANCE = 1e-6
_EACH = "the proof of all ranks' programs as one"
_CURED_BY_NUMBERS = frozenset({"VC102", "VC104", "VC107", "VC108", "VC202", "VC206"})
"""What may be wrong with a program because it computes with its rank: a rank's own graph has plain numbers there."""


def verify_captured(spec: Program, implementation: Program, options: Options) -> Report:
    """The report on a captured model: on one program for all ranks where there is one, else on each rank's."""
    seconds = spec.seconds + implementation.seconds
    return within_limits(options, seconds, lambda: _verify_captured(spec, implementation, options))


def _verify_captured(spec: Program, implementation: Program, options: Options) -> Report:
    count = 1 if implementation.mesh is None else len(implementation.mesh.ranks)
    question = Question(spec.provenance, implementation.provenance, count)
    report = _verified(spec, implementation, options)
    if report.verdict is not Verdict.VERIFIED:
        spec, implementation, report = _with_held_numbers(spec, implementation, report, options)
    asked = any(blocker.code == "VC209" for blocker in spec.blockers)
    doubt = None if report.verdict is Verdict.VERIFIED or asked else _doubt(spec)
    if isinstance(doubt, RanOut) and report.verdict is Verdict.UNPROVED:
        report, doubt = _noted(report, doubt.describe()), None
    if isinstance(doubt, RanOut):
        # Not knowing whether there is another spec, no difference from this one says anything.
        doubt = Blocker(None, "VC209", f"{doubt.describe()}.")
    if doubt is not None:
        # What differs may be the program or the spec that was recovered from it.
        report = verify_programs(dataclasses.replace(spec, blockers=(*spec.blockers, doubt)), implementation, options)
    report = with_rank_evidence(report, implementation, options)
    return dataclasses.replace(report, question=question)


def _with_held_numbers(
    spec: Program, implementation: Program, report: Report, options: Options
) -> tuple[Program, Program, Report]:
    """The programs and the report with the whole numbers that tensors hold: a difference must be one with those."""
    written = with_held_numbers(spec, implementation)
    if written is None:
        return spec, implementation, report
    found = _verified(*written, options)
    if found.verdict is Verdict.UNPROVED and report.verdict is Verdict.UNPROVED:
        return spec, implementation, report
    return (*written, found)


def _doubt(spec: Program) -> Blocker | RanOut | None:
    """Why the spec may be another one, where it was recovered."""
    if spec.doubt is None:
        return None
    return bounds.attempt("the search for other readings of the model's numbers", _uninterrupted(spec.doubt))


def _uninterrupted(capture: Callable[[], Value]) -> Callable[[], Value]:
    """``capture`` ended between two traces only: torch's state is not its own while it traces."""

    def captured() -> Value:
        with bounds.uninterrupted():
            return capture()

    return captured


def _verified(spec: Program, implementation: Program, options: Options) -> Report:
    mesh = implementation.mesh
    if implementation.ranks and mesh is not None:
        return verify_each_rank(spec, _ranks(implementation.ranks, mesh), mesh, options)
    report = verify_programs(spec, implementation, options, Repairs(proves=_proves_by_ranks))
    if report.verdict is not Verdict.UNPROVED or implementation.each_rank is None or mesh is None:
        return report
    if not all(finding.code in _CURED_BY_NUMBERS for finding in report.findings):
        return report
    # What a rank computes of its number need not be linear in it: a rank's own graph has plain numbers.
    try:
        programs = bounds.attempt("the capture of each rank", _uninterrupted(implementation.each_rank))
    except Exception as error:  # noqa: BLE001 - the report stands, unproved: what fails here can accept nothing
        note = f"the program was not captured as each rank: {type(error).__name__}: {error}"
        return _noted(report, note)
    if isinstance(programs, RanOut):
        return _noted(report, programs.describe())
    if not programs:
        return report
    ranks = _ranks(programs, mesh)
    found = bounds.attempt(_EACH, lambda: verify_ranks(spec, ranks, mesh, options))
    if isinstance(found, RanOut):
        return _noted(report, found.describe())
    return report if found.verdict is Verdict.UNPROVED else found


def _proves_by_ranks(spec: Program, implementation: Program) -> bool:
    """Whether a program is proved: as one for all ranks or, where it computes with the rank, as that of each rank."""
    if proves(spec, implementation):
        return True
    mesh = implementation.mesh
    if mesh is None or not implementation.coordinates or len(mesh.ranks) > EACH_UP_TO:
        return False
    try:
        each = [at_rank(implementation, coordinates(position, mesh)) for position in range(len(mesh.ranks))]
        return _proves_in_parts(*as_one_device(spec, mesh, _ranks(each, mesh)))
    except (OrderError, UnmergeableError):
        return False


def _proves_in_parts(spec: Program, whole: Program) -> bool:
    """Whether the ranks' programs, assembled, are proved, as they are or with parts assembled."""
    return proves(spec, whole) or any(proves(*programs) for programs in in_parts(spec, whole))


def _noted(report: Report, note: str) -> Report:
    first, *rest = report.findings
    return dataclasses.replace(report, findings=(dataclasses.replace(first, notes=(*first.notes, note)), *rest))


def _ranks(programs: Sequence[Program], mesh: Mesh) -> list[RankProgram]:
    return [
        RankProgram(program, _members(program, rank, mesh), same_objects=True)
        for program, rank in zip(programs, mesh.ranks, strict=True)
    ]


def _members(program: Program, rank: int, mesh: Mesh) -> Callable[[Any], tuple[int, ...]]:
    def members(group: Any) -> tuple[int, ...]:
        key = group.name if isinstance(group, torch.fx.Node) else str(group)
        if key not in program.groups:
            raise UnmergeableError(f"the process group `{key}` is no product of mesh axes")
        return line_through(rank, program.groups[key], mesh)

    return members


def verify_each_rank(spec: Program, ranks: Sequence[RankProgram], mesh: Mesh, options: Options) -> Report:
    """``verify_ranks`` within the limits of the verification."""
    found = bounds.attempt(_EACH, lambda: verify_ranks(spec, ranks, mesh, options))
    if isinstance(found, RanOut):
        return _report_of(finding_of_limit(found), spec, ranks, options)
    return found


def verify_ranks(spec: Program, ranks: Sequence[RankProgram], mesh: Mesh, options: Options) -> Report:
    """Whether the ranks' programs, one for each of ``mesh.ranks`` in order, together compute what ``spec`` computes.

    Ranks may run different graphs (pipeline stages, ``if rank == 0``), hold shards of different sizes, and send each
    other messages. Names of inputs and outputs are the spec's; a rank that lacks one does not hold it. An input without
    placements lies as its shapes say; an output without is any clean relation, gradients never partial.
    """
    misread = misread_shards(spec, [entry.program for entry in ranks], mesh)
    if misread is not None:
        return _report_of(finding_of_mismatch(misread), spec, ranks, options)
    try:
        merged, layouts = _merged(spec, ranks, mesh)
        whole_spec, whole = with_outputs(merged, spec, layouts, mesh)
    except OrderError as error:
        return _order_report(error, spec, ranks, options)
    except UnmergeableError as error:
        blocked = Program(ranks[0].program.graph, (), (), blockers=(Blocker(None, "VC206", f"{error.message}."),))
        return verify_programs(spec, blocked, options)
    changeable = functools.partial(RankGraphs, ranks, mesh, functools.partial(as_one_device, spec, mesh))
    report = verify_programs(whole_spec, whole, options, Repairs(changeable, _proves_in_parts))
    if report.verdict is Verdict.UNPROVED:
        found = bounds.attempt("the proof with parts assembled", lambda: _in_parts(whole_spec, whole, options))
        report = _noted(report, found.describe()) if isinstance(found, RanOut) else found or report
    report = on_their_ranks(report, merged, layouts, mesh)
    relations = {
        output.name: describe(output.name, layouts[output.name], mesh)
        for output in spec.outputs
        if output.name in report.relations and output.name in layouts
    }
    other = {name: text for name, text in report.relations.items() if name not in layouts and ON_RANK not in name}
    return dataclasses.replace(report, relations={**other, **relations})


def _merged(spec: Program, ranks: Sequence[RankProgram], mesh: Mesh) -> tuple[MergedRanks, dict[str, Placements]]:
    merged = merge_ranks(spec, ranks, mesh)
    return merged, find_layouts(spec, merged, mesh)


def as_one_device(spec: Program, mesh: Mesh, ranks: Sequence[RankProgram]) -> tuple[Program, Program]:
    """Spec and ranks as two programs of one device."""
    merged, layouts = _merged(spec, ranks, mesh)
    return with_outputs(merged, spec, layouts, mesh)


def programs_of_all_ranks(spec: Program, implementation: Program) -> tuple[Program, Program] | str:
    """Spec and ranks that run different graphs as two programs of one device, or why there are none."""
    mesh = implementation.mesh
    assert mesh is not None
    try:
        return as_one_device(spec, mesh, _ranks(implementation.ranks, mesh))
    except (OrderError, UnmergeableError) as error:
        return f"{error.message}."


def _in_parts(spec: Program, whole: Program, options: Options) -> Report | None:
    """The report on the programs as assembled from parts, where that proves them."""
    for programs in in_parts(spec, whole):
        report = verify_programs(*programs, options)
        if report.verdict is Verdict.VERIFIED:
            return report
    return None


def order_finding(spec: Program, programs: Sequence[Program], mesh: Mesh) -> Report | None:
    """The report on ranks that hang or exchange calls that do not belong together; None where all calls match."""
    graphs = [RankGraph(rank, p.graph, ranks_of) for rank, p in zip(mesh.ranks, programs, strict=True)]
    try:
        schedule(graphs)
    except OrderError as error:
        return _order_report(error, spec, [RankProgram(program, ranks_of) for program in programs], Options())
    return None


def find_layouts(spec: Program, merged: MergedRanks, mesh: Mesh) -> dict[str, Placements]:
    """For each output that the ranks hold its required layout, else the one under which it has the spec's numbers.

    The numbers only choose what is then proved.
    """
    layouts: dict[str, Placements] = {}
    open_outputs: list[str] = []
    kinds = {output.name: output.kind for output in spec.outputs}
    for name in merged.held:
        required = merged.required[name]
        if required is not None:
            layouts[name] = required
        elif name in kinds:
            open_outputs.append(name)
    if not open_outputs:
        return layouts
    spec_nodes = {output.name: output.node for output in spec.outputs}
    for name in open_outputs:
        held = merged.held[name]
        shape = tuple(spec_nodes[name].meta["val"].shape)
        fitting = [c for c in _candidates(len(shape), mesh, kinds[name]) if _shape_under(held, c, mesh) == shape]
        if not fitting:
            raise UnmergeableError(f"the ranks' parts of `{name}` do not make up its shape {list(shape)}")
        layouts[name] = _layout_by_numbers(spec, merged, name, fitting, mesh) if len(fitting) > 1 else fitting[0]
    return layouts


def _candidates(dims: int, mesh: Mesh, kind: OutputKind) -> Iterator[Placements]:
    choices: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(dims))]
    if kind is OutputKind.VALUE:
        choices += [Partial("sum"), Partial("avg")]
    return itertools.product(*(choices if axis.size > 1 else [Replicate()] for axis in mesh.axes))


def _shape_under(held: Mapping[int, torch.fx.Node], layout: Placements, mesh: Mesh) -> tuple[int, ...] | None:
    parts = {position: torch.empty(tuple(node.meta["val"].shape), device="meta") for position, node in held.items()}
    try:
        shapes = {tuple(value.shape) for _, value in assemble(parts, layout, mesh, _join, _add)}
    except (UnmergeableError, RuntimeError, IndexError):
        return None
    return shapes.pop() if len(shapes) == 1 else None


def _join(values: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat(list(values), dim)


def _add(values: Sequence[torch.Tensor], _: str) -> torch.Tensor:
    if len({tuple(value.shape) for value in values}) != 1:
        raise UnmergeableError("parts of different sizes")
    return values[0]


def _layout_by_numbers(
    spec: Program, merged: MergedRanks, name: str, fitting: Sequence[Placements], mesh: Mesh
) -> Placements:
    held = merged.held[name]
    node = next(output.node for output in spec.outputs if output.name == name)
    programs = programs_to_evaluate(spec, merged.program)
    if programs is None:
        return fitting[0]
    nodes = [{node.name: node for node in program.graph.graph.nodes} for program in programs]
    try:
        (expected,), found = values_on_one_input(
            *programs, [nodes[0][node.name]], [nodes[1][part.name] for part in held.values()]
        )
    except EvaluationError:
        return fitting[0]
    parts = dict(zip(held, found, strict=True))
    with real_tensors():
        for layout in fitting:
            if _sums_equal_parts(layout, parts, mesh):
                continue
            values = [value for _, value in assemble(parts, layout, mesh, _join, reduce)]
            scale = float(expected.abs().max()) if expected.numel() and expected.dtype is not torch.bool else 1.0
            if all(_near(value, expected, scale) for value in values):
                return layout
    return fitting[0]


def _sums_equal_parts(layout: Placements, parts: Mapping[int, torch.Tensor], mesh: Mesh) -> bool:
    """Whether the layout sums over an axis on which all ranks hold one value: a wrong scale, no partial value."""
    for axis, placement in enumerate(layout):
        if not isinstance(placement, Partial):
            continue
        rows: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for position, value in parts.items():
            place = coordinates(position, mesh)
            rows.setdefault((*place[:axis], *place[axis + 1 :]), []).append(value)
        if all(torch.equal(value, row[0]) for row in rows.values() for value in row):
            return True
    return False


def _near(value: torch.Tensor, expected: torch.Tensor, scale: float) -> bool:
    if not expected.is_floating_point():
        return torch.equal(value, expected)
    return bool(((value - expected).abs() <= _TOLERANCE * max(scale, 1e-12)).all())


def _order_report(error: OrderError, spec: Program, ranks: Sequence[RankProgram], options: Options) -> Report:
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    if error.second is not None:
        place = place_of(error.second[1])
        if place is not None:
            labels = (Label(place, "the other rank is here"),)
        notes = (f"the other rank calls `{operator_of(error.second[1])}` for `{value_name(error.second[1])}`",)
    finding = Finding(
        code="VC109",
        severity=Severity.ERROR,
        message=error.message,
        impl_location=place_of(error.first[1]),
        label=error.message,
        labels=(*labels, *helper_labels(error.first[1])),
        notes=notes,
        verdict=Verdict.REFUTED,
    )
    return _report_of(finding, spec, ranks, options)


def _report_of(finding: Finding, spec: Program, ranks: Sequence[RankProgram], options: Options) -> Report:
    """The report on ranks of which nothing but ``finding`` was asked."""
    if finding.verdict is Verdict.UNPROVED and options.on_unproved == "warn":
        finding = dataclasses.replace(finding, severity=Severity.WARNING)
    nodes = sum(len(entry.program.graph.graph.nodes) for entry in ranks)
    stats = Stats(spec_nodes=len(spec.graph.graph.nodes), implementation_nodes=nodes)
    return Report(verdict=finding.verdict, findings=(finding,), stats=stats)
