"""The report on ranks that run different programs: all of them as one program of a single device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.bounds import RanOut
from verifycompile.capture.in_parts import in_parts
from verifycompile.capture.ranks.merged_collectives import UnmergeableError
from verifycompile.capture.ranks.merged_ranks import (
    ON_RANK,
    MergedRanks,
    assemble,
    merge_ranks,
    with_outputs,
)
from verifycompile.capture.ranks.rank_schedule import OrderError
from verifycompile.cause import right_record
from verifycompile.cause.rank_graphs import RankGraphs
from verifycompile.diagnostics.finding import Finding, Label
from verifycompile.diagnostics.locate import helper_labels, place_of
from verifycompile.diagnostics.report import Report, Stats
from verifycompile.diagnostics.severity import Severity
from verifycompile.diagnostics.source_text import display_path
from verifycompile.diagnostics.verdict import Verdict
from verifycompile.findings_of_proofs import finding_of_limit, finding_of_mismatch
from verifycompile.options import Options
from verifycompile.program import Blocker, Mesh, OutputKind, Program
from verifycompile.rank_counterexamples import on_their_ranks
from verifycompile.reduction.search import programs_to_evaluate
from verifycompile.refinement.dtensor_shards import misread_shards
from verifycompile.refinement.placement import describe
from verifycompile.refutation import Repairs
from verifycompile.strategies import answer
from verifycompile.torch_interface.operators.elements import real_tensors
from verifycompile.torch_interface.source_lines.source import location_of
from verifycompile.torch_interface.source_lines.value_names import operator_of, value_name
from verifycompile.two_programs import OF_PAIRS, Pair, proves, verify_programs
from verifycompile.witness import EvaluationError
from verifycompile.witness.layout import reduce, sums_equal_parts
from verifycompile.witness.side_by_side import OnOneInput

Placements = tuple[Placement, ...]
_Values = Callable[[torch.fx.Node, Sequence[torch.fx.Node]], tuple[torch.Tensor, list[torch.Tensor]]]

_TOLERANCE = 1e-6


def verify_ranks(spec: Program, ranks: Sequence[Program], mesh: Mesh, options: Options) -> Report:
    """Whether the ranks' programs, one for each of ``mesh.ranks`` in order, together compute what ``spec`` computes.

    Ranks may run different graphs (pipeline stages, ``if rank == 0``), hold shards of different sizes, and send each
    other messages. Names of inputs and outputs are the spec's; a rank that lacks one does not hold it. An input without
    placements lies as its shapes say; an output without is any clean relation, gradients never partial.
    """
    misread = misread_shards(spec, ranks, mesh)
    if misread is not None:
        finding = finding_of_mismatch(misread, spec)
        hint = right_record(misread, spec, ranks, functools.partial(_are_proved, spec, mesh))
        return _report_of(dataclasses.replace(finding, hint=hint), spec, ranks, options)
    try:
        merged, layouts = _merged(spec, ranks, mesh)
        whole_spec, whole = with_outputs(merged, spec, layouts, mesh)
    except OrderError as error:
        return _order_report(error, spec, ranks, options)
    except UnmergeableError as error:
        place = None if error.node is None else location_of(error.node)
        where = "" if place is None else f" ({display_path(place.file)}:{place.line})"
        blocked = Program(ranks[0].graph, (), (), blockers=(Blocker(None, "VC206", f"{error.message}{where}."),))
        return verify_programs(spec, blocked, options)
    changeable = functools.partial(RankGraphs, spec, ranks, mesh, as_one_device)
    pair = Pair(whole_spec, whole, options, Repairs(proves_cut_alike, changeable))
    report = answer(OF_PAIRS, pair)
    report = on_their_ranks(report, merged, layouts, mesh)
    relations = {
        output.name: describe(output.name, layouts[output.name], mesh)
        for output in spec.outputs
        if output.name in report.relations and output.name in layouts
    }
    other = {name: text for name, text in report.relations.items() if name not in layouts and ON_RANK not in name}
    placements = {name: layouts[name] for name in relations}
    return dataclasses.replace(report, relations={**other, **relations}, placements=placements)


def _merged(spec: Program, ranks: Sequence[Program], mesh: Mesh) -> tuple[MergedRanks, dict[str, Placements]]:
    merged = merge_ranks(spec, ranks, mesh)
    return merged, find_layouts(spec, merged, mesh)


def as_one_device(spec: Program, mesh: Mesh, ranks: Sequence[Program]) -> tuple[Program, Program]:
    """Spec and ranks as two programs of one device."""
    merged, layouts = _merged(spec, ranks, mesh)
    return with_outputs(merged, spec, layouts, mesh)


def programs_of_all_ranks(spec: Program, implementation: Program) -> tuple[Program, Program] | str:
    """Spec and ranks that run different graphs as two programs of one device, or why there are none."""
    mesh = implementation.mesh
    assert mesh is not None
    try:
        return as_one_device(spec, mesh, implementation.ranks)
    except (OrderError, UnmergeableError) as error:
        return f"{error.message}."


def proves_cut_alike(spec: Program, whole: Program) -> bool:
    """Whether the ranks' programs as one are proved, as they are or with tensors that both programs cut alike."""
    return proves(spec, whole) or any(proves(*programs) for programs in in_parts(spec, whole))


def _are_proved(spec: Program, mesh: Mesh, ranks: Sequence[Program]) -> bool:
    try:
        return misread_shards(spec, ranks, mesh) is None and proves_cut_alike(*as_one_device(spec, mesh, ranks))
    except (OrderError, UnmergeableError):
        return False


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
    values = functools.cache(lambda: _values_on_one_input(spec, merged.program))
    for name in open_outputs:
        held = merged.held[name]
        shape = tuple(spec_nodes[name].meta["val"].shape)
        fitting = [c for c in _candidates(len(shape), mesh, kinds[name]) if _shape_under(held, c, mesh) == shape]
        if not fitting:
            raise UnmergeableError(f"the ranks' parts of `{name}` do not make up its shape {list(shape)}")
        is_open = len(fitting) > 1
        layouts[name] = _layout_by_numbers(values(), spec_nodes[name], held, fitting, mesh) if is_open else fitting[0]
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


def _values_on_one_input(spec: Program, whole: Program) -> _Values | None:
    """What gives values of nodes of both programs; None where these are not evaluated."""
    programs = programs_to_evaluate(spec, whole)
    if programs is None:
        return None
    try:
        evaluated = OnOneInput(*programs)
    except EvaluationError:
        return None
    spec_nodes, nodes = ({node.name: node for node in program.graph.graph.nodes} for program in programs)
    return lambda node, parts: evaluated.values(spec_nodes[node.name], [nodes[part.name] for part in parts])


def _layout_by_numbers(
    values: _Values | None,
    node: torch.fx.Node,
    held: Mapping[int, torch.fx.Node],
    fitting: Sequence[Placements],
    mesh: Mesh,
) -> Placements:
    if values is None:
        return fitting[0]
    try:
        expected, found = values(node, list(held.values()))
    except EvaluationError:
        return fitting[0]
    parts = dict(zip(held, found, strict=True))
    with real_tensors():
        for layout in fitting:
            if sums_equal_parts(layout, parts, mesh.shape):
                continue
            wholes = [value for _, value in assemble(parts, layout, mesh, _join, reduce)]
            scale = float(expected.abs().max()) if expected.numel() and expected.dtype is not torch.bool else 1.0
            if all(_near(value, expected, scale) for value in wholes):
                return layout
    return fitting[0]


def _near(value: torch.Tensor, expected: torch.Tensor, scale: float) -> bool:
    if not expected.is_floating_point():
        return torch.equal(value, expected)
    return bool(((value - expected).abs() <= _TOLERANCE * max(scale, 1e-12)).all())


def report_on_limit(ended: RanOut, spec: Program, ranks: Sequence[Program], options: Options) -> Report:
    """The report on ranks of which a limit ended the proof."""
    return _report_of(finding_of_limit(ended), spec, ranks, options)


def _order_report(error: OrderError, spec: Program, ranks: Sequence[Program], options: Options) -> Report:
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


def _report_of(finding: Finding, spec: Program, ranks: Sequence[Program], options: Options) -> Report:
    """The report on ranks of which nothing but ``finding`` was asked."""
    if finding.verdict is Verdict.UNPROVED and options.on_unproved == "warn":
        finding = dataclasses.replace(finding, severity=Severity.WARNING)
    nodes = sum(len(program.graph.graph.nodes) for program in ranks)
    stats = Stats(spec_nodes=len(spec.graph.graph.nodes), implementation_nodes=nodes)
    return Report(verdict=finding.verdict, findings=(finding,), stats=stats)
