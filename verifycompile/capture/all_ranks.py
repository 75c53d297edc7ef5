"""Programs that read their rank: captured as other ranks too, and brought to one graph for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch.fx

from verifycompile.capture.boundary import Export
from verifycompile.capture.common_graph import Differences, DifferentGraphsError, compare, generalize, needed_cuts
from verifycompile.capture.copied_frame import copied_frame
from verifycompile.capture.meshes import Root
from verifycompile.capture.rank_constants import rank_constant_blockers
from verifycompile.capture.rank_numbers import RankNumber, acting_numbers, rank_numbers, ranks_to_capture
from verifycompile.capture.rank_sources import RankAttribute, rank_attributes, stored_reads
from verifycompile.capture.tidy import without_copies
from verifycompile.program import Blocker, Program
from verifycompile.torch_interface.acting_rank import acted_variables, acting_as
from verifycompile.torch_interface.dynamo import GraphBreakError, TracedFrame, trace_frame
from verifycompile.torch_interface.globalize import Relocator
from verifycompile.torch_interface.mesh import own_rank
from verifycompile.torch_interface.rank_reads import CodeRead, reads_in_traced_code
from verifycompile.torch_interface.ranks import has_messages
from verifycompile.torch_interface.tensors import forget_layouts, of_acting_rank

EACH_UP_TO = 16
"""Up to so many ranks may run different programs: the proof then grows with their number."""


@dataclasses.dataclass(frozen=True)
class ForAllRanks:
    """What came of it: ``root`` may have finer axes, ``assumptions`` say which ranks were not captured."""

    root: Root
    blockers: tuple[Blocker, ...] = ()
    assumptions: tuple[str, ...] = ()


def for_all_ranks(
    traced: TracedFrame, exported: Export, root: Root, capture: Callable[[TracedFrame], Export]
) -> ForAllRanks:
    """Make ``exported``'s graph that of every rank, in place, where it holds numbers of the rank that captured it.

    ``capture``: how ``exported`` was made of ``traced``.

    Where the ranks run different programs the result has blockers and the graph stays as it is.
    """
    mesh = root.refined.mesh
    attributes, unknown = _numbers(traced, root)
    named = reads_in_traced_code(traced.context)
    by_name = {read.name for read in named}
    reads = (*named, *(read for read in stored_reads(traced) if read.name.rpartition(".")[2] not in by_name))
    export_reads = exported.joint.rank_reads
    if not reads and not export_reads and not attributes and not unknown:
        return ForAllRanks(root)
    graph = exported.joint.graph
    if own_rank() not in mesh.ranks:
        return ForAllRanks(root, rank_constant_blockers(graph, reads, export_reads))
    unknown = (*unknown, *_unknown_variables(reads))
    if unknown:
        return ForAllRanks(root, rank_constant_blockers(graph, unknown, ()))
    taken = tuple(item.assumption for item in attributes)
    ranks = ranks_to_capture(mesh)
    try:
        graphs = {
            own_rank(): graph,
            **{rank: _graph_of(rank, traced, root, capture, attributes) for rank in ranks if rank != own_rank()},
        }
        for captured in graphs.values():
            without_copies(captured)
        differences = _differences(graphs)
        cuts = needed_cuts(differences, mesh)
        finer = root.cut(cuts) if cuts else root
        generalize(graph, differences, finer.refined.mesh)
    except DifferentGraphsError as different:
        listed = (*reads, *(_read_of(traced, item) for item in attributes))
        blockers = rank_constant_blockers(graph, listed, export_reads, f": {different.message}", different.node)
        return ForAllRanks(root, blockers)
    if len(graphs) == len(mesh.ranks):
        return ForAllRanks(finer, assumptions=taken)
    text = (
        f"the program reads its rank; it was captured as {len(graphs)} of {len(mesh.ranks)} ranks, and on the others "
        "its numbers are taken to go on linearly"
    )
    return ForAllRanks(finer, assumptions=(*taken, text))


def _numbers(traced: TracedFrame, root: Root) -> tuple[tuple[RankAttribute | RankNumber, ...], tuple[CodeRead, ...]]:
    """What the program read that holds the rank or what was computed of it, and what of that is not known."""
    named = rank_attributes(traced, root.refined.mesh)
    known, unknown = rank_numbers(traced, root, named)
    return (*named, *known), unknown


def _read_of(traced: TracedFrame, attribute: RankAttribute | RankNumber) -> CodeRead:
    if isinstance(attribute, RankNumber):
        return attribute.source
    code = traced.frame.code
    return CodeRead(code.co_filename, code.co_firstlineno, code.co_name, attribute.path)


def _unknown_variables(reads: tuple[CodeRead, ...]) -> tuple[CodeRead, ...]:
    """Reads of environment variables whose values on other ranks are not known."""
    known = [f"os.environ['{name}']" for name in acted_variables(own_rank())]
    return tuple(read for read in reads if read.name.startswith("os.environ[") and read.name not in known)


def _differences(graphs: Mapping[int, torch.fx.GraphModule]) -> Differences:
    if any(has_messages(graph) for graph in graphs.values()):
        raise DifferentGraphsError("the ranks send messages to one another", None)
    return compare(graphs)


def as_each_rank(traced: TracedFrame, root: Root, capture: Callable[[TracedFrame], Program]) -> tuple[Program, ...]:
    """What each rank of the mesh runs, where the ranks run different programs; empty where that is not found out.

    Each rank has its own shards of the DTensors, which may have other sizes.
    ``capture``: makes the program of the rank that is acted.
    """
    mesh = root.refined.mesh
    if len(mesh.ranks) > EACH_UP_TO or own_rank() not in mesh.ranks:
        return ()
    assumption = f"the program was captured as each of its {len(mesh.ranks)} ranks, with the objects of this one"
    attributes, unknown = _numbers(traced, root)
    if unknown:
        return ()
    programs: list[Program] = []
    for rank in mesh.ranks:
        forget_layouts()
        try:
            with acting_as(rank, root.mesh), acting_numbers(attributes, rank, mesh):
                program = trace_frame(copied_frame(traced.frame, Relocator(of_acting_rank)), capture)
        except GraphBreakError:
            return ()
        finally:
            forget_layouts()
        # Nodes of a rank's graph are not those of the merged program.
        blockers = tuple(dataclasses.replace(blocker, node=None) for blocker in program.blockers)
        taken = (item.assumption for item in attributes)
        assumptions = (assumption, *taken, *program.assumptions)
        programs.append(dataclasses.replace(program, blockers=blockers, assumptions=assumptions))
    return tuple(programs)


def _graph_of(
    rank: int,
    traced: TracedFrame,
    root: Root,
    capture: Callable[[TracedFrame], Export],
    attributes: tuple[RankAttribute | RankNumber, ...],
) -> torch.fx.GraphModule:
    try:
        with acting_as(rank, root.mesh), acting_numbers(attributes, rank, root.refined.mesh):
            return trace_frame(traced.frame, lambda frame: capture(frame).joint.graph)
    except GraphBreakError as broken:
        raise DifferentGraphsError(f"rank {rank} does not trace to one graph ({broken})", None) from broken
