"""Graphs captured elsewhere: traced again as functional ATen graphs, with their parameters as inputs.

Functionalization does the work that needs torch's own knowledge of aliases: a write through a view becomes a new value
of everything that shares its memory.
"""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.fx
import torch.fx.traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import distributed_c10d
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from verifycompile.torch_interface.communication.in_place_collectives import FormsInterpreter


@dataclasses.dataclass(frozen=True)
class GroupObject:
    """A process group held by a graph. ``ranks``: its global ranks in order, None where this process forgot them."""

    name: str
    size: int
    ranks: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class FunctionalGraph:
    """``graph`` is functional ATen. ``names``: one per placeholder. ``lifted``: parameters that the graph held.
    A buffer stays a constant of the graph where its content is known.

    ``written``: placeholder name -> node of its value when the graph ends. ``places``: where each of the flattened
    results is in what the given graph returns.
    """

    graph: torch.fx.GraphModule
    names: tuple[str, ...]
    lifted: Mapping[str, torch.Tensor]
    written: Mapping[str, torch.fx.Node]
    places: tuple[str, ...] = ()


def module_of(graph: torch.fx.Graph, source: torch.nn.Module) -> torch.fx.GraphModule:
    """A module of ``graph`` with what its nodes read of ``source``; its code is written when somebody asks for it."""
    return _LazyGraphModule(source, graph)


def group_object(value: object) -> GroupObject | None:
    """What is known of a process group, given as an object or as the script object of a captured call."""
    if isinstance(value, torch.ScriptObject):
        if "ProcessGroup" not in str(value._type()):
            return None
        value = dist.ProcessGroup.unbox(value)
    if not isinstance(value, dist.ProcessGroup):
        return None
    return GroupObject(value.group_name, value.size(), _members(value))


def _members(group: dist.ProcessGroup) -> tuple[int, ...] | None:
    known = distributed_c10d._world.pg_group_ranks.get(group)
    return None if known is None else tuple(sorted(known, key=lambda rank: known[rank]))


def members_by_name(name: str) -> tuple[int, ...] | None:
    """Global ranks of the group of this process that has ``name``."""
    for group, known in distributed_c10d._world.pg_names.items():
        if known == name:
            return _members(group)
    return None


def groups_in(graph: torch.fx.GraphModule) -> Iterator[tuple[int, ...]]:
    """Global ranks of the process groups, known in this process, that calls of a graph name or hold."""
    for node in graph.graph.nodes:
        held = [getattr(graph, str(node.target), None)] if node.op == "get_attr" else node.args
        for value in held:
            found = group_object(value)
            members = members_by_name(value) if isinstance(value, str) else found and found.ranks
            if members is not None:
                yield members


def example_of(node: torch.fx.Node) -> object:
    """The value that a tracer recorded for a node; None where it recorded none."""
    for key in ("val", "example_value"):
        if node.meta.get(key) is not None:
            return node.meta[key]
    return None


def functional_graph(graph: torch.fx.GraphModule, examples: Sequence[object], label: str) -> FunctionalGraph:
    """Trace ``graph`` again on fake tensors. ``label`` stands for the file of nodes without a recorded stack.

    Raises what torch raises where the graph does not run on ``examples``, UnsupportedCollectiveError for an in-place
    collective without a functional form.
    """
    mode, values = _fake_values(examples)
    buffers = {name: value for name, value in graph.named_buffers() if isinstance(value, FakeTensor)}
    lifted: dict[str, torch.Tensor] = {**dict(graph.named_parameters()), **buffers}
    held = [
        value if isinstance(value, FakeTensor) else mode.from_tensor(value.detach(), static_shapes=True)
        for value in lifted.values()
    ]
    _note_places(graph, label)
    places: list[str] = []

    def run(*flat: Any) -> Any:
        given = dict(zip(lifted, flat, strict=False))
        with torch.fx.traceback.preserve_node_meta(), _reparametrize_module(graph, given):
            result = FormsInterpreter(graph).run(*flat[len(lifted) :], enable_io_processing=False)
            places[:] = [keystr(place) for place, _ in tree_flatten_with_path(result)[0]]
            return tree_leaves(result)

    with torch.fx.traceback.preserve_node_meta(), mode, torch.no_grad():
        traced = make_fx(torch.func.functionalize(run, remove="mutations"), tracing_mode="fake")(*held, *values)
    placeholders = traced.graph.find_nodes(op="placeholder")
    names = (*lifted, *(node.name for node in graph.graph.find_nodes(op="placeholder")))
    written = _split_writes(traced, dict(zip(placeholders, names, strict=True)))
    return FunctionalGraph(traced, names, lifted, written, tuple(places))


def _fake_values(examples: Sequence[object]) -> tuple[FakeTensorMode, list[object]]:
    """The examples under one fake mode: their own where they share one."""
    modes = {id(v.fake_mode): v.fake_mode for v in examples if isinstance(v, FakeTensor)}
    fakes = [v for v in examples if isinstance(v, torch.Tensor)]
    if len(modes) == 1 and all(isinstance(v, FakeTensor) for v in fakes):
        return next(iter(modes.values())), list(examples)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        values = [
            torch.empty_strided(tuple(v.shape), v.stride(), dtype=v.dtype, device=v.device)
            if isinstance(v, torch.Tensor)
            else v
            for v in examples
        ]
    return mode, values


def _note_places(graph: torch.fx.GraphModule, label: str) -> None:
    """Give nodes without a stack a place of their own: a line of the printed graph."""
    lines = [f"{node.format_node() or node.name}\n" for node in graph.graph.nodes]
    linecache.cache[label] = (sum(map(len, lines)), None, lines, label)
    for number, node in enumerate(graph.graph.nodes, start=1):
        if not node.meta.get("stack_trace"):
            node.meta["stack_trace"] = f'  File "{label}", line {number}, in forward\n    {lines[number - 1]}'


def _split_writes(traced: torch.fx.GraphModule, names: Mapping[torch.fx.Node, str]) -> dict[str, torch.fx.Node]:
    """Take the writes to inputs, with which a functionalized graph ends, out of the graph."""
    written: dict[str, torch.fx.Node] = {}
    for node in list(traced.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0] in names:
            target, value = node.args[0], node.args[1]
            assert isinstance(target, torch.fx.Node)
            assert isinstance(value, torch.fx.Node)
            written[names[target]] = value
            node.replace_all_uses_with(value)
            traced.graph.erase_node(node)
    traced.recompile()
    return written
