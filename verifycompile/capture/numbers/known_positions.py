"""Rows that are read at positions which the program itself counts out or holds, written as slices that are joined.

``x[torch.cat([torch.arange(2) + 2 * rank, ...])]`` is the same as a concatenation of slices once the rank is a number.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.program import Program
from verifycompile.torch_interface.dynamo.graph_modules import module_of
from verifycompile.torch_interface.operators.elements import constant_value, real_tensors

aten = torch.ops.aten

_COUNTED = (aten.arange.default, aten.arange.start, aten.arange.start_step)
_COMPUTED = (
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar,
    aten.rsub.Scalar, aten.cat.default, aten.flip.default, aten.stack.default, aten.flatten.using_ints,
    aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.clone.default, aten.slice.Tensor,
    aten.select.int, aten.index.Tensor, aten.index_select.default, aten.remainder.Scalar, aten.argsort.default,
    aten.argsort.stable, aten.sort.default, aten.sort.stable, operator.getitem, aten.full.default,
    aten.lift_fresh_copy.default,
)  # fmt: skip
_MOST_SLICES = 16
_MOST_POSITIONS = 65_536


def with_known_positions_as_slices(program: Program) -> Program:
    """``program`` with slices in the place of such reads; the program itself where it has none."""
    nodes = program.graph.graph.nodes
    known: dict[torch.fx.Node, Any] = {}
    for node in nodes:
        value = _held(node, program.graph) if node.op == "get_attr" else _positions(node, known)
        if value is not None:
            known[node] = value
    runs = {node: found for node in nodes if (found := _runs_of(node, known)) is not None}
    if not runs:
        return program
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    graph = torch.fx.Graph()
    for node in nodes:
        if node in runs:
            copied[node] = _joined(graph, node, copied, runs[node])
        else:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    return on_graph(program, graph, copied)


def _held(node: torch.fx.Node, graph: torch.fx.GraphModule) -> torch.Tensor | None:
    """The whole numbers of a tensor that the program holds."""
    held = operator.attrgetter(str(node.target))(graph)
    if not _is_whole_and_small(held):
        return None
    with real_tensors():
        return constant_value(held)


def _positions(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    """The whole numbers, in one tensor or several, that a node computes of nothing but such and numbers."""
    if node.op != "call_function" or node.target not in (*_COUNTED, *_COMPUTED):
        return None
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    if not all(map(_is_whole_and_small, values)) or any(other not in known for other in node.all_input_nodes):
        return None
    arguments, named = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
    target: Any = node.target
    try:
        return target(*arguments, **{**named, **({"device": "cpu"} if "device" in named else {})})
    except RuntimeError:  # numbers that the operator refuses, as a change that is tried may give it
        return None


def _is_whole_and_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_floating_point():
        return False
    return all(type(size) is int for size in value.shape) and value.numel() <= _MOST_POSITIONS


Runs = tuple[torch.fx.Node, int, list[tuple[int, int]]]


def _runs_of(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Runs | None:
    """``(x, dim, spans)`` where a node reads these spans of a dimension one after the other."""
    if node.op != "call_function":
        return None
    if node.target is aten.index.Tensor:
        source, indices = node.args[:2]
        given = [(dim, index) for dim, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]  # indices are a list by the schema
        if len(given) != 1:
            return None
        dim, index = given[0]
    elif node.target is aten.index_select.default:
        source, dim, index = node.args[:3]
    else:
        return None
    return _read(source, dim, known.get(index))  # type: ignore[arg-type]  # a node


def _read(source: Any, dim: int, positions: torch.Tensor | None) -> Runs | None:
    if positions is None or positions.dim() != 1 or positions.dtype is torch.bool or not positions.numel():
        return None
    numbers: list[int] = positions.tolist()
    starts = [0, *(k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1), len(numbers)]
    size = source.meta["val"].shape[dim]
    if len(starts) > _MOST_SLICES + 1 or not isinstance(size, int) or not all(0 <= n < size for n in numbers):
        return None
    return source, dim, [(numbers[k], numbers[k] + after - k) for k, after in itertools.pairwise(starts)]


def _joined(
    graph: torch.fx.Graph, node: torch.fx.Node, copied: Mapping[torch.fx.Node, torch.fx.Node], runs: Runs
) -> torch.fx.Node:
    source, dim, spans = runs
    pieces: list[torch.fx.Node] = []
    for start, stop in spans:
        pieces.append(graph.call_function(aten.slice.Tensor, (copied[source], dim, start, stop)))
        pieces[-1].meta = {**node.meta, "val": source.meta["val"].narrow(dim, start, stop - start)}
    if len(pieces) == 1:
        return pieces[0]
    joined = graph.call_function(aten.cat.default, (pieces, dim))
    joined.meta = dict(node.meta)
    return joined


def copied(program: Program) -> tuple[Program, dict[torch.fx.Node, torch.fx.Node]]:
    """``program`` on a copy of its graph, and the copy of each node."""
    graph, nodes = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in program.graph.graph.nodes:
        nodes[node] = graph.node_copy(node, nodes.__getitem__)
        nodes[node].meta = dict(node.meta)
    return on_graph(program, graph, nodes), nodes


def on_graph(program: Program, graph: torch.fx.Graph, copied: Mapping[torch.fx.Node, torch.fx.Node]) -> Program:
    """``program`` on another graph, in which its nodes are those of ``copied``."""
    return dataclasses.replace(
        program,
        graph=module_of(graph, program.graph),
        inputs=tuple(dataclasses.replace(item, node=copied[item.node]) for item in program.inputs),
        outputs=tuple(dataclasses.replace(item, node=copied[item.node]) for item in program.outputs),
        blockers=tuple(
            dataclasses.replace(item, node=None if item.node is None else copied.get(item.node))
            for item in program.blockers
        ),
    )
