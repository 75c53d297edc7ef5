"""``verify_graphs``: the report on graphs captured elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.common_graph import DifferentGraphsError
from verifycompile.capture.common_program import common_program
from verifycompile.capture.graphs import (
    check_shapes,
    implementation_program,
    mesh_of,
    prepare,
    relations_of,
    resolve_inputs,
    spec_program,
)
from verifycompile.capture.legacy_collectives import GroupTable, ranks_of
from verifycompile.capture.merged_ranks import RankProgram
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.options import Options
from verifycompile.program import Blocker, Mesh, Program
from verifycompile.question import Provenance, Question
from verifycompile.rank_verification import order_finding, verify_each_rank
from verifycompile.torch_interface.mesh import axes_of_line
from verifycompile.torch_interface.value_names import value_name
from verifycompile.verification import verify_programs
from verifycompile.within_limits import within_limits


def verify_graphs(
    spec_graph: torch.fx.GraphModule,
    rank_graphs: torch.fx.GraphModule | Sequence[torch.fx.GraphModule],
    in_relations: Any = None,
    out_relations: Any = None,
    *,
    mesh: Any = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    spec_inputs: Sequence[Any] | None = None,
    rank_inputs: Sequence[Any] | None = None,
    on_unproved: str = "error",
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> Report:
    """Whether the ranks' graphs together compute what the spec's graph computes.

    ``rank_graphs``: one graph a rank, in the order of the mesh's ranks, or one that every rank runs.
    ``in_relations``: placeholder of the implementation -> its placements, or the spec's placeholder of another name, or
    a pair of both; a sequence of such mappings is one for each rank. A placeholder may be named without the suffix
    that ``make_fx`` adds, or by its position. What is not named is the spec's placeholder of the same name (of the same
    position where no name is common), replicated; a shape that differs from the spec's must be named.
    ``out_relations``: ``"output.N"`` (N: position in the flattened result) -> the same, to require a layout; by default
    any clean relation will do. ``mesh``: a ``DeviceMesh``, a tuple of sizes, or axis name -> size; by default one axis
    of all ranks. ``groups``: process group name -> global ranks, where this process does not know them.
    ``spec_inputs``, ``rank_inputs``: example values of the placeholders of a graph that records none.
    ``on_unproved``, ``time_limit``, ``memory_limit``: as in ``Options``.
    Raises ``UsageError`` where the question is incomplete or contradictory.
    """
    started = time.perf_counter()
    options = Options.from_mapping({"on_unproved": on_unproved, "time_limit": time_limit, "memory_limit": memory_limit})
    graphs = capture_graphs(
        spec_graph,
        rank_graphs,
        in_relations,
        out_relations,
        mesh=mesh,
        groups=groups,
        spec_inputs=spec_inputs,
        rank_inputs=rank_inputs,
    )
    report = within_limits(options, time.perf_counter() - started, lambda: report_on(graphs, options))
    return dataclasses.replace(report, question=Question(Provenance.GIVEN, Provenance.GIVEN, len(graphs.mesh.ranks)))


@dataclasses.dataclass(frozen=True)
class CapturedGraphs:
    """What ``verify_graphs`` is asked about: ``programs`` holds one a rank, or one that every rank runs.

    ``even``: whether the placements of all inputs give every rank a part of one size.
    """

    spec: Program
    programs: tuple[Program, ...]
    mesh: Mesh
    even: bool


def capture_graphs(
    spec_graph: torch.fx.GraphModule,
    rank_graphs: torch.fx.GraphModule | Sequence[torch.fx.GraphModule],
    in_relations: Any = None,
    out_relations: Any = None,
    *,
    mesh: Any = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    spec_inputs: Sequence[Any] | None = None,
    rank_inputs: Sequence[Any] | None = None,
) -> CapturedGraphs:
    """Programs of the graphs that ``verify_graphs`` is given. Raises ``UsageError``."""
    started = time.perf_counter()
    single = isinstance(rank_graphs, torch.fx.GraphModule)
    if not single and (not isinstance(rank_graphs, (tuple, list)) or not rank_graphs):
        text = "`rank_graphs` must be a list of torch.fx.GraphModules, one a rank, or one graph that all ranks run."
        raise UsageError("VC306", text)
    graphs: list[Any] = [rank_graphs] if single else list(rank_graphs)
    layout = mesh_of(mesh, None if single else len(graphs))
    table = GroupTable({name: tuple(ranks) for name, ranks in (groups or {}).items()}, len(layout.ranks))
    given_inputs = relations_of("in_relations", in_relations, len(graphs))
    given_outputs = relations_of("out_relations", out_relations, len(graphs))

    spec = prepare(spec_graph, spec_inputs, table, "the spec's graph")
    spec_seconds = time.perf_counter() - started
    labels = ["the graph of all ranks"] if single else [f"the graph of rank {rank}" for rank in layout.ranks]
    examples = _examples(rank_inputs, len(graphs))
    ranks = [prepare(g, e, table, label) for g, e, label in zip(graphs, examples, labels, strict=True)]
    notes = table.assumptions
    inputs = [resolve_inputs(spec, r, given, layout, notes) for r, given in zip(ranks, given_inputs, strict=True)]
    even = [check_shapes(spec, r, placed, layout) for r, placed in zip(ranks, inputs, strict=True)]
    programs = [
        dataclasses.replace(implementation_program(r, spec, i, o, layout), mesh=layout)
        for r, i, o in zip(ranks, inputs, given_outputs, strict=True)
    ]
    capture_seconds = time.perf_counter() - started - spec_seconds
    if single:
        notes[Assumption("every rank runs the graph given", AssumptionKind.RANKS)] = None
    return CapturedGraphs(
        dataclasses.replace(spec_program(spec), seconds=spec_seconds),
        tuple(dataclasses.replace(p, assumptions=tuple(notes), seconds=capture_seconds) for p in programs),
        layout,
        all(even),
    )


def report_on(graphs: CapturedGraphs, options: Options) -> Report:
    """On one program for all ranks where there is one, else on each rank's."""
    spec, programs, mesh = graphs.spec, graphs.programs, graphs.mesh
    blockers = tuple(dict.fromkeys(b for program in (spec, *programs) for b in program.blockers))
    if blockers:
        return verify_programs(spec, dataclasses.replace(programs[0], blockers=blockers), options)
    wrong_order = order_finding(spec, programs, mesh) if len(programs) > 1 else None
    if wrong_order is not None:
        return wrong_order
    general = general_program(programs, mesh) if graphs.even else None
    if general is not None:
        return verify_programs(spec, general, options)
    share = 1 / len(programs)
    each = [RankProgram(dataclasses.replace(p, seconds=p.seconds * share), ranks_of) for p in programs]
    return verify_each_rank(spec, each, mesh, options)


def general_program(programs: Sequence[Program], mesh: Mesh) -> Program | None:
    """One program for all ranks, where their graphs and boundaries have a common form."""

    def axes(rank: int, key: str) -> object:
        if not key.startswith("ranks:"):
            return key
        found = axes_of_line(ranks_of(key), mesh)
        is_member = len(programs) == 1 or rank in ranks_of(key)
        return key if found is None or not is_member else found

    try:
        common = common_program(programs, mesh, axes)
        return dataclasses.replace(common, groups=_groups(common))
    except DifferentGraphsError as error:
        if len(programs) > 1:
            return None
        return dataclasses.replace(programs[0], blockers=(Blocker(error.node, "VC206", f"{error}."),))


def _groups(program: Program) -> dict[str, tuple[int, ...]]:
    """The mesh axes that the process groups of a graph span. Raises ``DifferentGraphsError``."""
    assert program.mesh is not None
    groups: dict[str, tuple[int, ...]] = {}
    for node in program.graph.graph.nodes:
        for key in (*node.args, *node.kwargs.values()):
            if isinstance(key, str) and key.startswith("ranks:") and key not in groups:
                spans = axes_of_line(ranks_of(key), program.mesh)
                if spans is None:
                    raise DifferentGraphsError(f"the group of `{value_name(node)}` is no product of mesh axes", node)
                groups[key] = spans
    return groups


def _examples(given: Sequence[Any] | None, ranks: int) -> list[Any]:
    if given is None:
        return [None] * ranks
    per_rank = len(given) == ranks and all(isinstance(item, (list, tuple)) for item in given)
    return list(given) if per_rank else [given] * ranks
