"""The graphs of all ranks as one program of a single device.

Each rank's nodes are copied; collectives become what they compute (additions, concatenations, slices), messages become
nothing. The inputs are the spec's, of which each rank takes its part, and every output of the spec is assembled from
the ranks' outputs. So what the proof and the witness do for one device holds for ranks that run different graphs, whose
shards are uneven, or that exchange messages. The cost grows with the number of ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.ranks.merged_collectives import (
    RANK,
    MergedNodes,
    UnmergeableError,
    divides_unevenly,
    laid_out,
    read_from_its_first_element,
    span_of,
    write_uneven_slices,
)
from verifycompile.capture.ranks.rank_schedule import Local, Meeting, RankGraph, RankNode, schedule
from verifycompile.collectives import COLLECTIVES, CollectiveError
from verifycompile.lowering.recorded import reads_memory
from verifycompile.program import Blocker, Mesh, OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.torch_interface.communication.in_place_collectives import is_key, ranks_of
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.ranks.mesh import line_through, place_at
from verifycompile.torch_interface.source_lines.value_names import value_name

aten = torch.ops.aten

Placements = tuple[Placement, ...]

HELD_AS = "held as"
"""Of a merged node: the position of each rank that has its value -> the names of the rank's own nodes that hold it."""
ON_RANK = " on rank "
"""Stands between the name of an output and the rank that holds it, where several ranks hold it whole."""


@dataclasses.dataclass(frozen=True)
class MergedRanks:
    """``held``: output of the spec -> the node that holds it on each rank, by position in the mesh.

    ``flows``: whether a gradient flows back from an output on every rank; None where that is not known.
    ``further``: what some rank returns or writes to and must have a counterpart, without its layout.
    """

    program: Program
    held: Mapping[str, Mapping[int, torch.fx.Node]]
    required: Mapping[str, Placements | None]
    flows: Mapping[str, bool | None]
    further: tuple[ProgramOutput, ...] = ()


def merge_ranks(spec: Program, ranks: Sequence[Program], mesh: Mesh) -> MergedRanks:
    """One single-device program out of the ranks' programs, in the order of ``mesh.ranks``.

    Names of inputs and outputs are the spec's, placements are over the whole mesh.
    Its outputs are still open: see ``with_outputs``. Raises ``OrderError`` (VC109) and ``UnmergeableError``.
    """
    for program in (spec, *ranks):
        _require_known_sizes(program)
    return _Merger(spec, ranks, mesh).run()


def _require_known_sizes(program: Program) -> None:
    """Ranks are assembled part by part, which takes numbers."""
    for item in program.inputs:
        value = item.node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            raise UnmergeableError(
                f"the ranks run different graphs, which can be compared for sizes that are known, and a size of "
                f"`{item.name}` is left open; compile with `dynamic=False`, or mark its dimensions as static"
            )


def with_outputs(
    merged: MergedRanks, spec: Program, layouts: Mapping[str, Placements], mesh: Mesh
) -> tuple[Program, Program]:
    """Spec and merged program with one output for each way to read an output of the spec under ``layouts``.

    An output that several ranks hold whole is one output a rank: the spec's is repeated.
    Raises ``UnmergeableError`` where a layout cannot be assembled.
    """
    graph = merged.program.graph.graph
    builder = MergedNodes(graph)
    spec_outputs: list[ProgramOutput] = []
    outputs: list[ProgramOutput] = []
    for output in spec.outputs:
        held = merged.held.get(output.name)
        if held is None:
            spec_outputs.append(output)
            continue
        variants = assemble(held, layouts[output.name], mesh, builder.join, builder.reduce)
        for number, (position, node) in enumerate(variants):
            name = output.name if number == 0 else f"{output.name}{ON_RANK}{mesh.ranks[position]}"
            spec_outputs.append(dataclasses.replace(output, name=name))
            # Where the layout was asked for, a permutation of the elements will not do: () requires equality.
            exact = None if merged.required[output.name] is None else ()
            flows = merged.flows.get(output.name)
            outputs.append(ProgramOutput(node, output.kind, name, output.index, exact, requires_grad=flows))
    names = {output.name for output in spec.outputs}
    outputs.extend(further for further in merged.further if further.name not in names)
    return (
        dataclasses.replace(spec, outputs=tuple(spec_outputs)),
        dataclasses.replace(merged.program, outputs=tuple(outputs)),
    )


def assemble(
    held: Mapping[int, Any],
    placements: Placements,
    mesh: Mesh,
    join: Callable[[Sequence[Any], int], Any],
    reduce: Callable[[Sequence[Any], str], Any],
) -> list[tuple[int, Any]]:
    """The whole values that the ranks' parts are under ``placements``, each with the position of a rank that has it.

    Raises ``UnmergeableError`` where a part is missing.
    """
    level: list[list[tuple[int, Any]]] = [
        [(position, held[position])] if position in held else [] for position in range(len(mesh.ranks))
    ]
    for axis, placement in reversed(list(zip(mesh.axes, placements, strict=True))):
        groups = [level[start : start + axis.size] for start in range(0, len(level), axis.size)]
        level = [_merge(group, placement, join, reduce) for group in groups]
    if not level[0]:
        raise UnmergeableError("no rank holds the value")
    return level[0]


def _merge(
    group: Sequence[list[tuple[int, Any]]],
    placement: Placement,
    join: Callable[[Sequence[Any], int], Any],
    reduce: Callable[[Sequence[Any], str], Any],
) -> list[tuple[int, Any]]:
    if isinstance(placement, Replicate):
        return [value for values in group for value in values]
    present = [values for values in group if values]
    if not present:
        return []
    if len(present) != len(group) or len({len(values) for values in group}) != 1:
        raise UnmergeableError("a rank holds no part of the value")
    columns = list(zip(*group, strict=True))
    if type(placement) is Shard:
        return [(column[0][0], join([value for _, value in column], placement.dim)) for column in columns]
    if type(placement) is Partial:
        return [(column[0][0], reduce([value for _, value in column], placement.reduce_op)) for column in columns]
    raise UnmergeableError(f"the placement {placement}")


class _Merger:
    def __init__(self, spec: Program, ranks: Sequence[Program], mesh: Mesh) -> None:
        self.spec, self.ranks, self.mesh = spec, ranks, mesh
        self.graph = torch.fx.Graph()
        self.module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        self.nodes = MergedNodes(self.graph)
        self.values: list[dict[torch.fx.Node, Any]] = [{} for _ in ranks]
        self.whole: dict[str, torch.fx.Node] = {}
        self.of_spec = {span_of(node) for node in spec.graph.graph.nodes if node.target is aten.slice.Tensor}
        self.as_in_spec: set[Any] = set()
        self.blockers: list[Blocker] = []
        self.deliveries: Mapping[tuple[RankNode, int | None], RankNode] = {}

    def run(self) -> MergedRanks:
        graphs = [
            RankGraph(rank, own.graph, members_of(own, rank, self.mesh), waits=not own.captured_elsewhere)
            for rank, own in zip(self.mesh.ranks, self.ranks, strict=True)
        ]
        plan = schedule(graphs)
        self.deliveries = plan.deliveries
        inputs = self._inputs()
        for step in plan.steps:
            if isinstance(step, Meeting):
                self._meet(step)
            else:
                self._local(step)
        held: dict[str, dict[int, torch.fx.Node]] = {}
        required: dict[str, Placements | None] = {}
        said_of: dict[str, set[bool | None]] = {}
        for position, own in enumerate(self.ranks):
            for output in own.outputs:
                said_of.setdefault(output.name, set()).add(output.requires_grad)
                held.setdefault(output.name, {})[position] = self._value(position, output.node)
                first = required.setdefault(output.name, output.placements)
                if first != output.placements:
                    one, other = map(_shown, (first, output.placements))
                    ranks = self.mesh.ranks[0], self.mesh.ranks[position]
                    text = f"`{output.name}` is {one} on rank {ranks[0]} and {other} on rank {ranks[1]}"
                    raise UnmergeableError(text, output.node)
        self._hold_unchanged(held)
        write_uneven_slices(self.graph, self.nodes.uneven, self.as_in_spec)
        self._note_holders()
        program = Program(
            graph=self.module,
            inputs=tuple(inputs),
            outputs=(),
            blockers=tuple(b for own in self.ranks for b in own.blockers if b.node is None),
            assumptions=tuple(
                dict.fromkeys(text for own in self.ranks for text in (*own.assumptions, *_assumed(own)))
            ),
            seconds=sum(own.seconds for own in self.ranks),
        )
        flows = {name: False if False in said else None if None in said else True for name, said in said_of.items()}
        return MergedRanks(program, held, required, flows, tuple(self._further(held)))

    def _note_holders(self) -> None:
        for position, own in enumerate(self.ranks):
            for node in own.graph.graph.nodes:
                holder, held = position, node
                while held not in self.values[holder] and ((holder, held), None) in self.deliveries:
                    holder, held = self.deliveries[(holder, held), None]
                merged = self.values[holder].get(held)
                if isinstance(merged, torch.fx.Node):
                    merged.meta.setdefault(HELD_AS, {}).setdefault(position, []).append(node.name)

    def _further(self, held: Mapping[str, Mapping[int, torch.fx.Node]]) -> Iterator[ProgramOutput]:
        """All that the ranks return or write to; of stages, which return values to each other, what they write to."""
        kinds = {
            output.name: output.kind
            for own in self.ranks
            for output in own.outputs
            if not own.captured_elsewhere or output.kind is not OutputKind.VALUE
        }
        for name, kind in kinds.items():
            yield ProgramOutput(next(iter(held[name].values())), kind, name, -1)

    def _hold_unchanged(self, held: Mapping[str, dict[int, torch.fx.Node]]) -> None:
        """A rank has an input as it was where only other ranks write to it, and no gradient where others have one."""
        for output in self.spec.outputs:
            if output.kind is OutputKind.VALUE or output.name not in held:
                continue
            name = output.name.partition(".")[2]
            items = {
                position: item
                for position, own in enumerate(self.ranks)
                for item in own.inputs
                if item.name == name and isinstance(item.node.meta.get("val"), torch.Tensor)
            }
            for position, own in enumerate(self.ranks):
                if position in held[output.name]:
                    continue
                item = items.get(position)
                if output.kind is OutputKind.GRADIENT and item is not None:
                    value = self.values[position][item.node].meta["val"]
                    held[output.name][position] = self.nodes.call(
                        aten.full.default, list(value.shape), 0, dtype=value.dtype
                    )
                elif output.kind is OutputKind.MUTATION and item is not None:
                    held[output.name][position] = self.values[position][item.node]
                elif output.kind is OutputKind.MUTATION and not own.captured_elsewhere and items:
                    written = next(iter(items.values()))
                    held[output.name][position] = self._part(position, self.whole[name], written)

    # -- inputs

    def _inputs(self) -> list[ProgramInput]:
        whole = self.whole
        inputs: list[ProgramInput] = []
        needed = {item.name for own in self.ranks for item in own.inputs}
        for item in self.spec.inputs:
            if item.name not in needed or not isinstance(item.node.meta.get("val"), torch.Tensor):
                continue
            node = self.graph.placeholder(f"whole_{len(inputs)}")
            node.meta.update(item.node.meta)
            whole[item.name] = node
            inputs.append(dataclasses.replace(item, node=node, placements=None))
        for position, own in enumerate(self.ranks):
            for item in own.inputs:
                if not isinstance(item.node.meta.get("val"), torch.Tensor):
                    continue
                if item.name not in whole and not item.node.users:
                    continue
                if item.name not in whole:
                    raise UnmergeableError(f"the input `{item.name}` has no counterpart in the spec", item.node)
                self.nodes.origin, self.nodes.rank = item.node, self.mesh.ranks[position]
                part = self._part(position, whole[item.name], item)
                if tuple(part.meta["val"].shape) != tuple(item.node.meta["val"].shape):
                    shapes = list(item.node.meta["val"].shape), list(part.meta["val"].shape)
                    raise UnmergeableError(
                        f"the input `{item.name}` has shape {shapes[0]} on rank {self.mesh.ranks[position]}; "
                        f"its placements give {shapes[1]}",
                        item.node,
                    )
                self.values[position][item.node] = part
        self.nodes.origin = self.nodes.rank = None
        return inputs

    def _part(self, position: int, whole: torch.fx.Node, item: ProgramInput) -> torch.fx.Node:
        place = place_at(position, self.mesh.shape)
        part = whole
        placements = item.placements
        if placements is None:
            placements = self._layout_by_shape(item, whole)
        for axis, placement in enumerate(placements):
            if isinstance(placement, Replicate):
                continue
            if type(placement) is not Shard:
                raise UnmergeableError(f"the input `{item.name}` with the placement {placement}", item.node)
            size = part.meta["val"].shape[placement.dim]
            start, length = uneven_part(size, self.mesh.axes[axis].size, place[axis])
            part = self.nodes.part(part, placement.dim % part.meta["val"].dim(), start, length)
        return part

    def _layout_by_shape(self, item: ProgramInput, whole: torch.fx.Node) -> Placements:
        """The only layout that gives the shapes that the ranks were captured with: whole, or sharded along one axis."""
        shape = tuple(whole.meta["val"].shape)
        locals_: dict[int, tuple[int, ...]] = {
            position: tuple(other.node.meta["val"].shape)
            for position, own in enumerate(self.ranks)
            for other in own.inputs
            if other.name == item.name and other.role is item.role
        }
        replicated: Placements = tuple(Replicate() for _ in self.mesh.axes)
        layouts = [replicated]
        for axis, dim in itertools.product(range(len(self.mesh.axes)), range(len(shape))):
            layouts.append((*replicated[:axis], Shard(dim), *replicated[axis + 1 :]))
        fitting = [layout for layout in layouts if _fits(layout, shape, locals_, self.mesh)]
        if not fitting or (fitting[0] != replicated and len(fitting) > 1):
            raise UnmergeableError(f"the layout of the input `{item.name}` is not known", item.node)
        return fitting[0]

    # -- steps

    def _value(self, position: int, node: torch.fx.Node) -> Any:
        """The merged node of a rank's node; behind a receive, that of the value sent."""
        while node not in self.values[position]:
            sent = self.deliveries.get(((position, node), None))
            if sent is None:
                raise UnmergeableError(f"`{value_name(node)}` has no value", node)
            position, node = sent
        return self.values[position][node]

    def _local(self, step: Local) -> None:
        position, node = step.node
        name = operator_name(node.target) or "" if node.op == "call_function" else ""
        if node.op in ("placeholder", "output"):
            return
        if name.startswith(("_c10d_functional.irecv", "_c10d_functional.isend")):
            return
        if name.startswith("_c10d_functional.wait_tensor"):
            self._alias(position, node, node.args[0])
            return
        if name == "aten.copy.default" and self._is_received(position, node.args[1]):
            self._alias(position, node, node.args[1])
            return
        if node.target is operator.getitem and self._is_batch(position, node):
            return
        if node.op == "get_attr":
            self._constant(position, node)
            return
        if node.op != "call_function":
            raise UnmergeableError(f"a graph node of kind `{node.op}`", node)
        self.nodes.origin, self.nodes.rank = node, self.mesh.ranks[position]
        read = node.all_input_nodes[0] if reads_memory(node) else None
        laid = None if read is None else laid_out(self.nodes, self._value(position, read), read)
        copied = self.graph.node_copy(node, lambda operand: laid if operand is read else self._value(position, operand))
        copied.meta[RANK] = self.mesh.ranks[position]
        if read is not None:
            read_from_its_first_element(copied, read)
        if node.target is not aten.slice.Tensor or not self._is_in_spec(node, copied):
            copied = self.nodes.simplify(copied)
        self.values[position][node] = copied
        self.nodes.origin = self.nodes.rank = None

    def _is_in_spec(self, node: torch.fx.Node, copied: torch.fx.Node) -> bool:
        """Whether a slice in a rank's own code is one that the spec takes as well: else it may divide a dimension."""
        span = span_of(node)
        if span is None:
            return False
        if span in self.of_spec:
            self.as_in_spec.add(copied)
            return not self.nodes.simplify.is_composed(copied.args[0])
        if divides_unevenly(span[1], span[2], span[0]):
            self.nodes.uneven.add(span[0])
        return False

    def _alias(self, position: int, node: torch.fx.Node, source: Any) -> None:
        if source in self.values[position]:
            self.values[position][node] = self.values[position][source]
        else:
            self.deliveries = {**self.deliveries, ((position, node), None): (position, source)}

    def _is_received(self, position: int, source: Any) -> bool:
        return isinstance(source, torch.fx.Node) and ((position, source), None) in self.deliveries

    def _is_batch(self, position: int, node: torch.fx.Node) -> bool:
        source, index = node.args
        if not isinstance(source, torch.fx.Node) or "batch_p2p_ops" not in str(source.target):
            return False
        sent = self.deliveries.get(((position, source), index))  # pyright: ignore[reportArgumentType]  # a position is a number here
        if sent is not None:
            self.deliveries = {**self.deliveries, ((position, node), None): sent}
        return True

    def _constant(self, position: int, node: torch.fx.Node) -> None:
        value: Any = operator.attrgetter(str(node.target))(self.ranks[position].graph)
        name = f"rank_{position}_{str(node.target).replace('.', '_')}"
        setattr(self.module, name, value)
        copied = self.graph.create_node("get_attr", name)  # `get_attr` warns of what is no buffer
        copied.meta.update(node.meta)
        self.values[position][node] = copied

    def _meet(self, step: Meeting) -> None:
        operation = step.name.split(".")[1]
        form = COLLECTIVES.get(operation)
        if form is None:
            raise UnmergeableError(f"the collective `{operation}` has no single-device form", step.nodes[0][1])
        self.nodes.origin = step.nodes[0][1]
        key = "input" if "input" in step.arguments[0] else "inputs"
        values: list[Any] = []
        for (position, _), row in zip(step.nodes, step.arguments, strict=True):
            if key not in row:
                raise UnmergeableError(f"the collective `{operation}` has no single-device form", step.nodes[0][1])
            values.append(self._value(position, row[key]))
        try:
            results = form(self.nodes, values, step.arguments)
        except CollectiveError as error:
            raise UnmergeableError(error.message, step.nodes[0][1]) from error
        for (position, node), result in zip(step.nodes, results, strict=True):
            self.values[position][node] = result
        self.nodes.origin = None


def _shown(placements: Placements | None) -> str:
    return "of any layout" if placements is None else f"({', '.join(map(str, placements))})"


def _assumed(own: Program) -> list[str]:
    listed: list[str] = []
    for item in own.inputs:
        if item.assumed and item.role is not Role.TANGENT and item.placements is not None:
            text = f"`{item.name}` is placed ({', '.join(map(str, item.placements))}) by default"
            listed.append(Assumption(text, AssumptionKind.PLACEMENT, [item.name]))
    return listed


def _fits(layout: Placements, shape: tuple[int, ...], parts: Mapping[int, tuple[int, ...]], mesh: Mesh) -> bool:
    for position, part in parts.items():
        expected = list(shape)
        for axis, (placement, index) in enumerate(zip(layout, place_at(position, mesh.shape), strict=True)):
            if isinstance(placement, Shard):
                expected[placement.dim] = uneven_part(expected[placement.dim], mesh.axes[axis].size, index)[1]
        if tuple(expected) != part:
            return False
    return True


def members_of(program: Program, rank: int, mesh: Mesh) -> Callable[[Any], tuple[int, ...]]:
    """The group argument of a collective in the program of ``rank`` -> global ranks of the group, in order."""

    def members(group: Any) -> tuple[int, ...]:
        key = group.name if isinstance(group, torch.fx.Node) else str(group)
        if key in program.groups:
            return line_through(rank, program.groups[key], mesh)
        if is_key(key):
            return ranks_of(key)
        raise UnmergeableError(f"the process group `{key}` is no product of mesh axes")

    return members


def uneven_part(size: int, count: int, index: int) -> tuple[int, int]:
    """Start and length of chunk ``index`` of ``count``, as ``torch.chunk`` and DTensor divide a dimension."""
    each = -(-size // count)
    start = min(index * each, size)
    return start, min(each, size - start)
