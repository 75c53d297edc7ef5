"""Programs that may differ by rank: captured as other ranks too, and brought to one graph for all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import torch
import torch.fx

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.capture.data_parallel.outer import OuterGradient, outer_gradients
from verifycompile.capture.held_tensors import Contents, contents_of
from verifycompile.capture.meshes import Root, resolve_groups
from verifycompile.capture.numbers.held_numbers import held_numbers, write_numbers_out
from verifycompile.capture.ranks.as_ranks import AsRanks, Built, relocated, unknown_variables
from verifycompile.capture.ranks.boundaries import Boundary, boundary_of, require_one_boundary
from verifycompile.capture.ranks.common_graph import Differences, DifferentGraphsError, compare, generalize, needed_cuts
from verifycompile.capture.ranks.tidy import with_joined_slices, without_copies
from verifycompile.errors import UsageError
from verifycompile.program import Blocker, Mesh, Program
from verifycompile.torch_interface.data_parallel.outer import outer_of
from verifycompile.torch_interface.dtensor.tensors import forget_layouts
from verifycompile.torch_interface.dynamo.frames import GraphBreakError, TracedFrame, trace_frame
from verifycompile.torch_interface.ranks.mesh import mixed_radix, own_rank
from verifycompile.torch_interface.ranks.observation import Read
from verifycompile.torch_interface.ranks.rank_reads import ExportRead
from verifycompile.torch_interface.ranks.rank_values import has_messages

EACH_UP_TO = 16
"""Up to so many ranks may run different programs: the proof then grows with their number."""
ALL_UP_TO = 32
"""Meshes of so many ranks are captured as every rank; on larger ones the rest is an assumption of the report."""


@dataclasses.dataclass(frozen=True)
class ForAllRanks:
    """What came of it: ``root`` may have finer axes, ``assumptions`` say which ranks were not captured.

    ``contents``: of the tensors that the ranks' models hold, where each has a model of its own. ``written_out``: those
    of them that hold whole numbers which differ by rank; their numbers are in the graph.
    """

    root: Root
    blockers: tuple[Blocker, ...] = ()
    assumptions: tuple[str, ...] = ()
    contents: Mapping[int, Contents] = dataclasses.field(default_factory=dict[int, Contents])
    written_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Captured:
    """A rank's graph. ``groups``: the mesh axes of the process groups in it.

    ``gradients``: what wrappers outside of it make of the gradients, by the names of parameters.
    """

    graph: torch.fx.GraphModule
    boundary: Boundary
    groups: Mapping[str, tuple[int, ...]]
    contents: Contents
    numbers: Mapping[str, tuple[torch.fx.Node, torch.Tensor]]
    gradients: Mapping[str, OuterGradient]


def for_all_ranks(
    exported: Export,
    root: Root,
    reads: tuple[Read, ...],
    others: AsRanks,
    capture: Callable[[TracedFrame], Export],
    *,
    is_placed: Callable[[str], bool],
) -> ForAllRanks:
    """Make ``exported``'s graph that of every rank, in place, where it holds numbers of the rank that captured it.

    ``reads``: what was asked about the rank while it was captured. ``capture``: how ``exported`` was made of a frame.
    ``is_placed``: whether an option says how the tensor of a name lies. Where the ranks run different programs the
    result has blockers and the graph stays as it is.
    """
    mesh = root.refined.mesh
    export_reads = exported.joint.rank_reads
    if not reads and not export_reads and not isinstance(others, Built):
        return ForAllRanks(root)
    graph = exported.joint.graph
    unknown = unknown_variables(reads)
    if own_rank() not in mesh.ranks or unknown:
        return ForAllRanks(root, rank_constant_blockers(graph, unknown or reads, export_reads))

    def captured(frame: TracedFrame) -> _Captured:
        return _captured(capture(frame), root, exported)

    ranks = tuple(rank for rank in ranks_to_capture(mesh) if rank != own_rank())
    contents: dict[int, Contents] = {}
    written: tuple[str, ...] = ()
    try:
        found = {own_rank(): _captured(exported, root, exported)}
        for rank in ranks:
            found[rank] = _of_rank(rank, root, others, captured)
        if isinstance(others, Built):
            contents = {rank: found[rank].contents for rank in ranks}
            again = _built_alike(found[own_rank()], root, others, captured)
            contents[own_rank()] = again.contents
            _require_one_wrapping({**found, own_rank(): again})
            written = _written_out(found, is_placed)
        finer = _generalized(found, root)
    except DifferentGraphsError as different:
        blockers = rank_constant_blockers(graph, reads, export_reads, f": {different.message}", different.node)
        if not blockers:
            text = f"the models that `build` makes run other graphs on other ranks: {different.message}."
            blockers = (Blocker(different.node, "VC203", text),)
        return ForAllRanks(root, blockers, contents=contents, written_out=written)
    if len(found) == len(mesh.ranks):
        return ForAllRanks(finer, contents=contents, written_out=written)
    what = "`build` was called for" if isinstance(others, Built) else "the program reads its rank; it was captured as"
    text = f"{what} {len(found)} of {len(mesh.ranks)} ranks, and on the others its numbers are taken to go on linearly"
    taken = Assumption(text, AssumptionKind.RANKS)
    return ForAllRanks(finer, assumptions=(taken,), contents=contents, written_out=written)


def _written_out(found: Mapping[int, _Captured], is_placed: Callable[[str], bool]) -> tuple[str, ...]:
    """Write the whole numbers that differ by rank into the ranks' graphs, in place; the names of what held them."""
    names: list[str] = []
    for name, (_, numbers) in next(iter(found.values())).numbers.items():
        held = [item.numbers.get(name) for item in found.values()]
        alike = all(one is not None and one[1].shape == numbers.shape for one in held)
        if not alike or is_placed(name) or all(one is not None and torch.equal(one[1], numbers) for one in held):
            continue
        names.append(name)
    for item in found.values():
        write_numbers_out(item.graph, item.numbers, names)
    return tuple(names)


def ranks_to_capture(mesh: Mesh) -> tuple[int, ...]:
    """All ranks of a small mesh; of a large one those with a first, second or last coordinate on every axis."""
    if len(mesh.ranks) <= ALL_UP_TO:
        return mesh.ranks
    chosen = [sorted({0, min(1, axis.size - 1), axis.size - 1}) for axis in mesh.axes]
    return tuple(
        mesh.ranks[mixed_radix(list(zip(place, mesh.shape, strict=True)))] for place in itertools.product(*chosen)
    )


def _captured(exported: Export, root: Root, shared: Export) -> _Captured:
    graph = exported.joint.graph
    outer = outer_of(exported.traced.example_inputs).joined(exported.traced.frame.wrappers)
    return _Captured(
        graph,
        boundary_of(exported, root),
        resolve_groups(graph, root.mesh).axes,
        contents_of(exported, shared),
        held_numbers(exported, shared),
        outer_gradients(exported, root.mesh, outer),
    )


def _of_rank(rank: int, root: Root, others: AsRanks, captured: Callable[[TracedFrame], _Captured]) -> _Captured:
    forget_layouts()
    try:
        with others.frame(rank, root) as frame:
            return trace_frame(frame, captured)
    except GraphBreakError as broken:
        raise DifferentGraphsError(f"rank {rank} does not trace to one graph ({broken})", None) from broken
    finally:
        forget_layouts()


def _built_alike(
    own: _Captured, root: Root, others: AsRanks, captured: Callable[[TracedFrame], _Captured]
) -> _Captured:
    """Build this rank's model once more, last, so that what ``build`` sets outside of it is this rank's in the end.

    Raises ``UsageError`` VC306 where its program is another.
    """
    again = _of_rank(own_rank(), root, others, captured)
    try:
        require_one_boundary({own_rank(): own.boundary, -1: again.boundary})
        differences = _compared({own_rank(): own, -1: again})
        reason = "" if not differences.numbers else f"numbers of `{next(iter(differences.numbers)).name}` differ"
    except DifferentGraphsError as different:
        reason = different.message.replace("rank -1", "the second model")
    if reason:
        raise UsageError("VC306", f"option `build` does not make the same model for this rank each time: {reason}.")
    return again


def _require_one_wrapping(found: Mapping[int, _Captured]) -> None:
    """Raises ``UsageError`` VC306 where wrappers make other things of a gradient on one rank than on another."""
    first, *others = found
    for rank in others:
        ours, theirs = found[first].gradients, found[rank].gradients
        for name in dict.fromkeys((*ours, *theirs)):
            if ours.get(name) != theirs.get(name):
                raise UsageError(
                    "VC306",
                    f"option `build` does not wrap the models of all ranks alike: what becomes of the gradient of "
                    f"`{name}` outside of the program is another on rank {rank} than on rank {first}.",
                )


def _compared(found: Mapping[int, _Captured]) -> Differences:
    """Process groups of the same mesh axes are the same, whatever they are called on a rank."""
    graphs = {rank: item.graph for rank, item in found.items()}
    return compare(graphs, lambda rank, text: found[rank].groups.get(text, text))


def _generalized(found: Mapping[int, _Captured], root: Root) -> Root:
    """Brings the first graph to a form for all ranks, in place; the mesh with the axes that this takes."""
    graphs = {rank: item.graph for rank, item in found.items()}
    for graph in graphs.values():
        without_copies(graph)
        with_joined_slices(graph)
    if any(has_messages(graph) for graph in graphs.values()):
        raise DifferentGraphsError("the ranks send messages to one another", None)
    require_one_boundary({rank: item.boundary for rank, item in found.items()})
    differences = _compared(found)
    cuts = needed_cuts(differences, root.refined.mesh)
    finer = root.cut(cuts) if cuts else root
    generalize(next(iter(graphs.values())), differences, finer.refined.mesh)
    return finer


def as_each_rank(
    root: Root, reads: tuple[Read, ...], others: AsRanks, capture: Callable[[TracedFrame], Program]
) -> tuple[Program, ...]:
    """What each rank of the mesh runs, where the ranks run different programs; empty where that is not found out.

    Each rank has its own shards of the DTensors, which may have other sizes.
    ``capture``: makes the program of the rank that is acted.
    """
    mesh = root.refined.mesh
    if len(mesh.ranks) > EACH_UP_TO or own_rank() not in mesh.ranks:
        return ()
    assumptions: tuple[str, ...] = ()
    if unknown_variables(reads):
        return ()
    if not isinstance(others, Built):
        count = len(mesh.ranks)
        text = f"the program was captured as each of its {count} ranks, with the objects of this one"
        assumptions = (Assumption(text, AssumptionKind.RANKS),)
    programs: dict[int, Program] = {}
    # This rank last: what `build` sets outside of the models stays as it is for this rank.
    for rank in sorted(mesh.ranks, key=lambda rank: rank == own_rank()):
        forget_layouts()
        try:
            with others.frame(rank, root) as frame:
                program = trace_frame(relocated(frame), capture)
        except GraphBreakError:
            return ()
        finally:
            forget_layouts()
        # Nodes of a rank's graph are not those of the merged program.
        blockers = tuple(dataclasses.replace(blocker, node=None) for blocker in program.blockers)
        programs[rank] = dataclasses.replace(
            program, blockers=blockers, assumptions=(*assumptions, *program.assumptions)
        )
    return tuple(programs[rank] for rank in mesh.ranks)


def rank_constant_blockers(
    graph: torch.fx.GraphModule,
    reads: tuple[Read, ...],
    export_reads: tuple[ExportRead, ...],
    reason: str = "",
    node: torch.fx.Node | None = None,
) -> tuple[Blocker, ...]:
    """One blocker a read. A read by torch blocks every node of the operation in which it happened.

    ``reason``: how the graphs of two ranks differ; ``node``: where they do.
    """
    blockers = [
        Blocker(
            node,
            "VC203",
            f"`{read.reader}` in `{read.function}` ({read.place}) is a constant of the graph that was captured on this "
            f"rank; other ranks run other graphs{reason}.",
        )
        for read in reads
    ]
    for stack_trace in dict.fromkeys(read.stack_trace for read in export_reads):
        readers = dict.fromkeys(f"`{read.reader}`" for read in export_reads if read.stack_trace == stack_trace)
        message = (
            f"torch.distributed put this rank's number into the graph as a constant (read by {', '.join(readers)})."
        )
        blockers.extend(Blocker(node, "VC203", message) for node in _nodes_of(graph, stack_trace) or (None,))
    return tuple(blockers)


def _nodes_of(graph: torch.fx.GraphModule, stack_trace: str | None) -> tuple[torch.fx.Node, ...]:
    if stack_trace is None:
        return ()
    return tuple(
        node for node in graph.graph.nodes if node.op == "call_function" and node.meta.get("stack_trace") == stack_trace
    )
