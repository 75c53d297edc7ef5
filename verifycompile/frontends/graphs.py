"""``verify_graphs``: the report on graphs captured elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.graphs import (
    check_shapes,
    implementation_program,
    mesh_of,
    prepare,
    relations_of,
    resolve_inputs,
    spec_program,
)
from verifycompile.capture.ranks.captured_graphs import CapturedGraphs
from verifycompile.capture.ranks.process_groups import GroupTable
from verifycompile.diagnostics.report import Report
from verifycompile.errors import UsageError
from verifycompile.frontends import Captured, report_of
from verifycompile.options import Options
from verifycompile.question import Provenance


@dataclasses.dataclass(frozen=True)
class Graphs:
    """What ``verify_graphs`` is given, which says what each of these is."""

    spec_graph: torch.fx.GraphModule
    rank_graphs: torch.fx.GraphModule | Sequence[torch.fx.GraphModule]
    in_relations: Any = None
    out_relations: Any = None
    mesh: Any = None
    groups: Mapping[str, Sequence[int]] | None = None
    spec_inputs: Sequence[Any] | None = None
    rank_inputs: Sequence[Any] | None = None

    @contextlib.contextmanager
    def captured(self, options: Options) -> Generator[Captured]:  # noqa: ARG002 - as every source of graphs
        graphs = self.programs()
        yield Captured(graphs.spec, graphs.implementation())

    def programs(self) -> CapturedGraphs:
        """Programs of the graphs. Raises ``UsageError``."""
        started = time.perf_counter()
        given = self.rank_graphs
        single = isinstance(given, torch.fx.GraphModule)
        if not single and (not isinstance(given, (tuple, list)) or not given):
            text = "`rank_graphs` must be a list of torch.fx.GraphModules, one a rank, or one graph that all ranks run."
            raise UsageError("VC306", text)
        if isinstance(self.spec_graph, (tuple, list)):
            raise UsageError(
                "VC306", "`spec_graph`, the first argument, is one graph; those of the ranks are the second."
            )
        graphs: list[Any] = [given] if single else list(given)
        layout = mesh_of(self.mesh, None if single else len(graphs))
        table = GroupTable({name: tuple(ranks) for name, ranks in (self.groups or {}).items()}, len(layout.ranks))
        given_inputs = relations_of("in_relations", self.in_relations, len(graphs))
        given_outputs = relations_of("out_relations", self.out_relations, len(graphs))

        spec = prepare(self.spec_graph, self.spec_inputs, table, "the spec's graph")
        spec_seconds = time.perf_counter() - started
        labels = ["the graph of all ranks"] if single else [f"the graph of rank {rank}" for rank in layout.ranks]
        examples = _examples(self.rank_inputs, len(graphs))
        ranks = [prepare(g, e, table, label) for g, e, label in zip(graphs, examples, labels, strict=True)]
        notes = table.assumptions
        inputs = [resolve_inputs(spec, r, given, layout, notes) for r, given in zip(ranks, given_inputs, strict=True)]
        even = [check_shapes(spec, r, placed, layout) for r, placed in zip(ranks, inputs, strict=True)]
        programs = [
            dataclasses.replace(implementation_program(r, spec, i, o, layout), mesh=layout)
            for r, i, o in zip(ranks, inputs, given_outputs, strict=True)
        ]
        share = (time.perf_counter() - started - spec_seconds) / len(programs)
        if single:
            notes[Assumption("every rank runs the graph given", AssumptionKind.RANKS)] = None
        return CapturedGraphs(
            dataclasses.replace(spec_program(spec), seconds=spec_seconds, provenance=Provenance.GIVEN),
            tuple(
                dataclasses.replace(p, assumptions=(*p.assumptions, *notes), seconds=share, provenance=Provenance.GIVEN)
                for p in programs
            ),
            layout,
            all(even),
        )


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
    graphs = Graphs(spec_graph, rank_graphs, in_relations, out_relations, mesh, groups, spec_inputs, rank_inputs)
    options = {"on_unproved": on_unproved, "time_limit": time_limit, "memory_limit": memory_limit}
    return report_of(graphs, Options.from_mapping(options))


def _examples(given: Sequence[Any] | None, ranks: int) -> list[Any]:
    if given is None:
        return [None] * ranks
    per_rank = len(given) == ranks and all(isinstance(item, (list, tuple)) for item in given)
    return list(given) if per_rank else [given] * ranks
