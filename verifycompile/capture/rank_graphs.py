"""One graph for all ranks out of one graph a rank, where they are equal up to numbers linear in the rank's coordinates.

Every rank's graph is compared with the general one, node by node, so what is proved of the general graph holds of the
graphs that were given. Where they are not equal in this sense there is no general graph.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.capture import common_graph
from verifycompile.capture.legacy_collectives import ranks_of
from verifycompile.capture.refine_mesh import RefinedMesh, refine
from verifycompile.program import Mesh
from verifycompile.torch_interface.evaluation import constant_value, real_tensors
from verifycompile.torch_interface.mesh import axes_of_line
from verifycompile.torch_interface.ranks import coordinate_node, exchanges_parts, has_messages, size_environment


class DifferentGraphsError(Exception):
    """The ranks' graphs have no common form. The message says where they part."""


def finer_mesh(graphs: Sequence[torch.fx.GraphModule], mesh: Mesh) -> RefinedMesh | None:
    """The mesh with its axes cut so that the numbers in which the graphs differ are linear in the coordinates.

    None where no cut is needed, or none helps. A number such as ``rank // 2`` is linear in digits of the rank.
    """
    try:
        differences = common_graph.compare(dict(zip(mesh.ranks, graphs, strict=True)))
    except common_graph.DifferentGraphsError:
        return None
    cuts = common_graph.needed_cuts(differences, mesh)
    refined = refine(mesh, [mesh.ranks[:stride] for stride in cuts])
    return refined if len(refined.mesh.axes) > len(mesh.axes) else None


class Generalization:
    """The general graph, which is the first rank's graph rewritten in place.

    ``coordinates`` and ``groups`` are those of ``Program``. A single graph stands for that of every rank.
    """

    def __init__(self, graphs: Sequence[torch.fx.GraphModule], mesh: Mesh) -> None:
        self.mesh = mesh
        self.graph = graphs[0]
        self.coordinates: dict[sympy.Symbol, int] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self.generalized = 0
        self._graphs = graphs
        self._environment = size_environment()
        self._places = list(itertools.product(*(range(size) for size in mesh.shape)))
        self._coordinate_nodes: dict[int, torch.fx.Node] = {}
        self._twins: list[dict[torch.fx.Node, torch.fx.Node]] = [{} for _ in graphs]
        self._changes: list[tuple[torch.fx.Node, Any, Any]] = []
        if has_messages(self.graph):
            raise DifferentGraphsError("the ranks send messages to one another")
        nodes = [list(graph.graph.nodes) for graph in graphs]
        if len({len(found) for found in nodes}) != 1:
            raise DifferentGraphsError(f"the graphs have {sorted({len(found) for found in nodes})} nodes")
        for row in zip(*nodes, strict=True):
            self._compare(row)
        for node, args, kwargs in self._changes:
            self._rewrite(node, args, kwargs)
        self.graph.recompile()

    def _compare(self, row: Sequence[torch.fx.Node]) -> None:
        first = row[0]
        if any(node.op != first.op for node in row):
            raise DifferentGraphsError(f"`{first.name}` is another kind of node on another rank")
        if first.op == "get_attr":
            self._compare_constants(row)
        elif first.op != "placeholder" and any(node.target != first.target for node in row):
            raise DifferentGraphsError(f"`{first.name}` calls another operator on another rank")
        if len({_description(node.meta.get("val")) for node in row}) != 1:
            raise DifferentGraphsError(f"`{first.name}` has another shape or dtype on another rank")
        for twins, node in zip(self._twins, row, strict=True):
            twins[node] = first
        args = self._general([node.args for node in row], first)
        kwargs = self._general([node.kwargs for node in row], first)
        if _has_expression(args) or _has_expression(kwargs):
            if exchanges_parts(first):
                raise DifferentGraphsError(f"the ranks exchange parts of different sizes in `{first.name}`")
            self._changes.append((first, args, kwargs))

    def _compare_constants(self, row: Sequence[torch.fx.Node]) -> None:
        held = [_attribute(graph, str(node.target)) for graph, node in zip(self._graphs, row, strict=True)]
        if not all(isinstance(value, torch.Tensor) for value in held):
            raise DifferentGraphsError(f"`{row[0].name}` is no tensor")
        with real_tensors():
            values = [constant_value(value) for value in held]  # pyright: ignore[reportArgumentType]
            first = values[0]
            if first is None or any(value is None or not torch.equal(value, first) for value in values):
                raise DifferentGraphsError(f"the constant `{row[0].name}` differs by rank")

    def _general(self, values: Sequence[Any], node: torch.fx.Node) -> Any:
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise DifferentGraphsError(f"the arguments of `{node.name}` differ by rank")
        if isinstance(first, torch.fx.Node):
            if any(twins[value] is not first for twins, value in zip(self._twins, values, strict=True)):
                raise DifferentGraphsError(f"`{node.name}` has other operands on another rank")
            return first
        if isinstance(first, dict):
            if any(value.keys() != first.keys() for value in values):
                raise DifferentGraphsError(f"the arguments of `{node.name}` differ by rank")
            return {key: self._general([value[key] for value in values], node) for key in first}
        if isinstance(first, (list, tuple)):
            if len({len(value) for value in values}) != 1:
                raise DifferentGraphsError(f"the arguments of `{node.name}` differ by rank")
            return [self._general(column, node) for column in zip(*values, strict=True)]
        if isinstance(first, str) and first.startswith("ranks:"):
            return self._group(values, node)
        if all(value == first for value in values):
            return first
        if type(first) is int:
            return self._affine(values, node)
        raise DifferentGraphsError(f"an argument of `{node.name}` is {first!r} on one rank and not on another")

    def _group(self, keys: Sequence[str], node: torch.fx.Node) -> str:
        """The key on the first rank, noted as the mesh axes that every rank's group spans."""
        spans: set[tuple[int, ...] | None] = set()
        for position, key in enumerate(keys):
            members, rank = ranks_of(key), self.mesh.ranks[position]
            if len(keys) > 1 and rank not in members:
                raise DifferentGraphsError(f"rank {rank} takes part in `{node.name}` but is not in its group")
            spans.add(axes_of_line(members, self.mesh))
        found = spans.pop()
        if spans or found is None:
            raise DifferentGraphsError(f"the group of `{node.name}` is no product of mesh axes")
        self.groups[keys[0]] = found
        return keys[0]

    def _affine(self, values: Sequence[int], node: torch.fx.Node) -> sympy.Expr:
        """The numbers as a linear expression of the coordinates."""
        by_place = dict(zip(self._places, values, strict=True))
        origin = (0,) * len(self.mesh.axes)
        base = by_place[origin]
        expression: sympy.Expr = sympy.Integer(base)
        steps: list[int] = []
        for axis, entry in enumerate(self.mesh.axes):
            step = 0
            if entry.size > 1:
                step = by_place[tuple(int(a == axis) for a in range(len(origin)))] - base
            steps.append(step)
            expression += step * self._symbol(axis) if step else 0
        for place, value in by_place.items():
            if base + sum(step * index for step, index in zip(steps, place, strict=True)) != value:
                raise DifferentGraphsError(f"a number of `{node.name}` is not linear in the rank's coordinates")
        return expression

    def _symbol(self, axis: int) -> sympy.Symbol:
        if axis not in self._coordinate_nodes:
            first = next(iter(self.graph.graph.nodes))
            with self.graph.graph.inserting_before(first):
                node, symbol = coordinate_node(self.graph, axis, self._environment)
            self._coordinate_nodes[axis] = node
            self.coordinates[symbol] = axis
        value = self._coordinate_nodes[axis].meta["val"]
        return value.node.expr

    def _rewrite(self, node: torch.fx.Node, args: Any, kwargs: Any) -> None:
        with self.graph.graph.inserting_before(node):
            node.args = tuple(self._written(value) for value in args)
            node.kwargs = {key: self._written(value) for key, value in kwargs.items()}
        self.generalized += 1

    def _written(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._written(item) for item in value]
        if not isinstance(value, sympy.Expr):
            return value
        result: Any = int(value.subs(dict.fromkeys(self.coordinates, 0)))
        for symbol, axis in self.coordinates.items():
            factor = int(sympy.Integer(value.coeff(symbol)))
            if factor:
                term = self._call(operator.mul, self._coordinate_nodes[axis], factor)
                result = self._call(operator.add, term, result)
        return result

    def _call(self, function: Any, *args: Any) -> torch.fx.Node:
        node = self.graph.graph.call_function(function, args)
        node.meta["val"] = function(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))
        return node


def _attribute(graph: torch.fx.GraphModule, path: str) -> object:
    value: object = graph
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _description(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return tuple(map(str, value.shape)), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_description(item) for item in value)
    return type(value)


def _has_expression(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_expression(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_expression(item) for item in value)
    return isinstance(value, sympy.Expr)
