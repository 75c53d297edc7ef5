"""One graph for all ranks out of the graphs of several of them: captured here as each, given, or told by the ranks.

The graphs are compared node by node. Where they differ in whole numbers alone, and each of these is linear in the
rank's coordinates, the numbers become expressions of the coordinates; any other difference is reported, not bridged.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.distributed.device_mesh import DeviceMesh

from verifycompile.program import Mesh
from verifycompile.torch_interface.operators.elements import constant_value, real_tensors
from verifycompile.torch_interface.operators.schema import arguments_of
from verifycompile.torch_interface.operators.shapes import symbol_of
from verifycompile.torch_interface.ranks.mesh import coordinate_of, real_object
from verifycompile.torch_interface.ranks.rank_values import exchanges_parts, new_coordinate
from verifycompile.torch_interface.source_lines.source import location_of
from verifycompile.torch_interface.source_lines.value_names import value_name

Path = tuple[int | str, ...]
"""Way to an argument of a node: ``("args", 0, 2)``."""
Numbers = tuple[int, ...]
"""One number a rank, in the order of the captured ranks."""
_PIECES = (torch.ops.aten.split.Tensor, torch.ops.aten.split_with_sizes.default, torch.ops.aten.chunk.default)


class DifferentGraphsError(Exception):
    """The ranks run graphs without a common form; ``node`` is where the first one parts from another."""

    def __init__(self, message: str, node: torch.fx.Node | None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node


@dataclasses.dataclass(frozen=True)
class Differences:
    """Numbers of the first graph that are others on other ranks: node -> path -> the number on each captured rank."""

    ranks: tuple[int, ...]
    numbers: Mapping[torch.fx.Node, Mapping[Path, Numbers]]


def compare(
    graphs: Mapping[int, torch.fx.GraphModule], meaning: Callable[[int, str], object] = lambda _, text: text
) -> Differences:
    """``graphs``: rank -> its graph. Raises ``DifferentGraphsError`` where they differ in more than whole numbers.

    ``meaning``: what a text among the arguments means on a rank, as the key of a process group does.
    """
    ranks = tuple(graphs)
    comparison = _Comparison(ranks, tuple(graphs.values()), meaning)
    rows = [list(graph.graph.nodes) for graph in graphs.values()]
    shortest = min(rows, key=len)
    for position in range(len(shortest)):
        comparison.row([nodes[position] for nodes in rows])
    exchanged = next((node for node in comparison.numbers if exchanges_parts(node)), None)
    if exchanged is not None:
        text = f"the ranks exchange parts of different sizes in `{value_name(exchanged)}`"
        raise DifferentGraphsError(text, exchanged)
    longer = next((rank for rank, nodes in zip(ranks, rows, strict=True) if len(nodes) != len(shortest)), None)
    if longer is not None:
        raise DifferentGraphsError(f"the graph of rank {longer} is longer than that of another rank", None)
    return Differences(ranks, comparison.numbers)


def check_equal(graphs: Mapping[int, torch.fx.GraphModule]) -> None:
    """Raises ``DifferentGraphsError`` where the graphs differ in anything."""
    for node, paths in compare(graphs).numbers.items():
        for numbers in paths.values():
            shown = _listed(dict(zip(graphs, numbers, strict=True)))
            raise DifferentGraphsError(f"`{value_name(node)}` has other numbers{_line(node)}: {shown}", node)


class _Comparison:
    def __init__(
        self,
        ranks: tuple[int, ...],
        graphs: tuple[torch.fx.GraphModule, ...],
        meaning: Callable[[int, str], object],
    ) -> None:
        self.numbers: dict[torch.fx.Node, dict[Path, Numbers]] = {}
        self._meaning = meaning
        self._ranks = ranks
        self._graphs = graphs
        self._twins: list[dict[torch.fx.Node, torch.fx.Node]] = [{} for _ in graphs]

    def row(self, nodes: Sequence[torch.fx.Node]) -> None:
        first = nodes[0]
        for rank, graph, node, twins in zip(self._ranks, self._graphs, nodes, self._twins, strict=True):
            if node.op != first.op or (node.op == "call_function" and node.target != first.target):
                raise self._different(first, rank, f"calls `{node.target}` where", f"calls `{first.target}`")
            if node.op == "get_attr" and not self._same_attribute(first, rank, graph, node):
                raise self._different(first, rank, f"holds another constant `{node.target}` than", "")
            if _description(node.meta.get("val")) != _description(first.meta.get("val")):
                theirs, ours = (_shown(item.meta.get("val")) for item in (node, first))
                raise self._different(first, rank, f"makes {theirs} where", f"makes {ours}")
            twins[node] = first
        _write_defaults(nodes)
        if first.target is torch.ops.aten.slice.Tensor and any(node.args[1:] != first.args[1:] for node in nodes):
            _write_places(nodes)
        self._argument(first, ("args",), [node.args for node in nodes])
        self._argument(first, ("kwargs",), [node.kwargs for node in nodes])

    def _argument(self, first: torch.fx.Node, path: Path, values: Sequence[Any]) -> None:
        ours = values[0]
        for rank, value, twins in zip(self._ranks, values, self._twins, strict=True):
            if isinstance(value, torch.fx.Node) and isinstance(ours, torch.fx.Node):
                same = twins.get(value) is ours or _hold_one_mesh(value, ours)
            else:
                same = type(value) is type(ours)
            if not same:
                raise self._different(first, rank, f"has another operand of `{value_name(first)}` than", "")
        if isinstance(ours, torch.fx.Node):
            return
        if isinstance(ours, (list, tuple, dict)):
            keys = list(ours) if isinstance(ours, dict) else list(range(len(ours)))
            for rank, value in zip(self._ranks, values, strict=True):
                if (list(value) if isinstance(value, dict) else list(range(len(value)))) != keys:
                    raise self._different(first, rank, f"has other arguments of `{value_name(first)}` than", "")
            for key in keys:
                self._argument(first, (*path, key), [value[key] for value in values])
            return
        if isinstance(ours, slice):
            for part in ("start", "stop", "step"):
                self._argument(first, (*path, part), [getattr(value, part) for value in values])
            return
        if isinstance(ours, str):
            meanings = [self._meaning(rank, value) for rank, value in zip(self._ranks, values, strict=True)]
            other = next((i for i, meaning in enumerate(meanings) if meaning != meanings[0]), None)
        else:
            other = next((i for i, value in enumerate(values) if not _same_leaf(value, ours)), None)
        if other is None:
            return
        if type(ours) is not int:
            raise self._different(first, self._ranks[other], f"passes {values[other]!r} where", f"passes {ours!r}")
        self.numbers.setdefault(first, {})[path] = tuple(values)

    def _same_attribute(
        self, first: torch.fx.Node, rank: int, graph: torch.fx.GraphModule, node: torch.fx.Node
    ) -> bool:
        """A constant with the same values, or an object that means the same, as a process group of the same axes."""
        meaning = self._meaning(rank, node.name)
        if meaning != node.name and meaning == self._meaning(self._ranks[0], first.name):
            return True
        return _same_constant(self._graphs[0], first, graph, node)

    def _different(self, first: torch.fx.Node, rank: int, theirs: str, ours: str) -> DifferentGraphsError:
        text = f"rank {rank} {theirs} rank {self._ranks[0]}{' ' + ours if ours else ''}"
        return DifferentGraphsError(f"{text}{_line(first)}", first)


def _line(node: torch.fx.Node) -> str:
    place = location_of(node)
    return "" if place is None else f" (line {place.line})"


def _write_defaults(nodes: Sequence[torch.fx.Node]) -> None:
    """Torch leaves out trailing arguments that have their defaults, as an offset is on the first rank: written out."""
    longest = max(len(node.args) for node in nodes)
    for node in nodes:
        missing = (arguments_of(node.target) or ())[len(node.args) : longest]
        if all(argument.has_default and argument.name not in node.kwargs for argument in missing):
            node.args = (*node.args, *(argument.default for argument in missing))


def _hold_one_mesh(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether both stand for equal meshes: which of several equal ones torch hands on depends on what it kept."""
    ours, theirs = (real_object(held.meta.get("val")) for held in (node, other))
    return isinstance(ours, DeviceMesh) and isinstance(theirs, DeviceMesh) and ours == theirs


def _write_places(slices: Sequence[torch.fx.Node]) -> None:
    """A slice that goes up to the end of a dimension, or counts from there, written with the places themselves."""
    for node in slices:
        source, dim, *ends = (*node.args, *(0, None, None)[len(node.args) - 1 :])[:4]
        value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        size = value.shape[dim] if isinstance(value, torch.Tensor) and isinstance(dim, int) else None
        if not isinstance(size, int) or any(isinstance(end, (torch.fx.Node, torch.SymInt)) for end in ends):
            continue
        start, stop, _ = slice(*ends).indices(size)
        node.args = (source, dim, start, stop, *node.args[4:])


def _same_leaf(value: Any, other: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value) == str(other)
    if isinstance(value, (int, float, complex, str, torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return value == other or repr(value) == repr(other)
    return value is other or real_object(value) is real_object(other)


def _same_constant(
    first_graph: torch.fx.GraphModule, first: torch.fx.Node, graph: torch.fx.GraphModule, node: torch.fx.Node
) -> bool:
    ours = operator.attrgetter(str(first.target))(first_graph)
    theirs = operator.attrgetter(str(node.target))(graph)
    if ours is theirs or real_object(ours) is real_object(theirs):
        return True
    if isinstance(real_object(ours), DeviceMesh):
        return real_object(ours) == real_object(theirs)
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    with real_tensors():
        values = constant_value(ours), constant_value(theirs)
        if values[0] is None or values[1] is None:
            return False
        return values[0].dtype == values[1].dtype and bool(torch.equal(values[0], values[1]))


def _description(value: object) -> object:
    if isinstance(value, torch.Tensor):
        memory = value.stride() if value.layout is torch.strided else ()
        return f"{value.dtype}{[str(size) for size in value.shape]}", tuple(map(str, memory))
    if isinstance(value, (list, tuple)):
        return tuple(_description(item) for item in value)
    return type(value).__name__


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_shown(item) for item in value)})"
    return type(value).__name__


def linear(numbers: Numbers, ranks: tuple[int, ...], mesh: Mesh) -> tuple[int, tuple[int, ...]] | None:
    """``(base, steps)`` with number = base + sum(step * coordinate) on all ``ranks``; None where there is none.

    ``ranks`` must hold the first rank of the mesh and its neighbour along each axis.
    """
    by_place = {coordinate_of(rank, mesh): number for rank, number in zip(ranks, numbers, strict=True)}
    origin = (0,) * len(mesh.axes)
    base = by_place[origin]
    steps: list[int] = []
    for axis, entry in enumerate(mesh.axes):
        neighbour = tuple(int(index == axis) for index in range(len(origin)))
        steps.append(by_place[neighbour] - base if entry.size > 1 else 0)
    for place, number in by_place.items():
        if base + sum(step * index for step, index in zip(steps, place, strict=True)) != number:
            return None
    return base, tuple(steps)


def needed_cuts(differences: Differences, mesh: Mesh) -> tuple[int, ...]:
    """Where the axes must be cut for all numbers to be linear: multiples of ranks, as of a group's size.

    A number such as ``rank % 4`` is linear in digits of the rank, though not in the rank. None are needed, or none
    help, where the result is empty.
    """
    cuts: set[int] = set()
    digits = _prime_digits(len(mesh.ranks))
    fine = dataclasses.replace(mesh, axes=tuple(dataclasses.replace(mesh.axes[0], size=size) for size in digits))
    for paths in differences.numbers.values():
        for numbers in paths.values():
            if linear(numbers, differences.ranks, mesh) is not None or len(differences.ranks) != len(mesh.ranks):
                continue
            found = linear(numbers, differences.ranks, fine)
            if found is None:
                continue
            stride = 1
            ratio: float | None = None
            for step, size in zip(reversed(found[1]), reversed(digits), strict=True):
                if ratio is not None and step / stride != ratio:
                    cuts.add(stride)
                ratio = step / stride
                stride *= size
    return tuple(sorted(cuts))


def _prime_digits(count: int) -> tuple[int, ...]:
    """Prime factors, the smallest last."""
    factors: list[int] = []
    rest = count
    for prime in range(2, math.isqrt(count) + 2):
        while rest % prime == 0 and prime <= rest:
            factors.append(prime)
            rest //= prime
    return tuple(reversed([*factors, rest] if rest > 1 else factors))


def generalize(graph: torch.fx.GraphModule, differences: Differences, mesh: Mesh) -> dict[sympy.Symbol, int]:
    """Replace the numbers of ``graph`` that differ by rank by expressions of the coordinates, in place.

    Returns the coordinates that this takes: the symbol of each, and the axis of ``mesh`` that it is the place on.
    Raises ``DifferentGraphsError`` for a number that is not linear in the coordinates of ``mesh``.
    """
    writer = _Writer(graph, mesh)
    for node, paths in differences.numbers.items():
        fitted = {path: linear(numbers, differences.ranks, mesh) for path, numbers in paths.items()}
        for path, found in fitted.items():
            if found is None:
                numbers = dict(zip(differences.ranks, paths[path], strict=True))
                text = f"a number of `{value_name(node)}` is not linear in the rank's coordinates: {_listed(numbers)}"
                raise DifferentGraphsError(text, node)
        values = {path: found for path, found in fitted.items() if found is not None}
        if node.target is operator.getitem:
            writer.pick(node, values)
        else:
            writer.rewrite(node, values)
    graph.graph.lint()
    graph.recompile()
    return writer.coordinates()


def _listed(numbers: Mapping[int, int]) -> str:
    shown = [f"{number} on rank {rank}" for rank, number in list(numbers.items())[:4]]
    return ", ".join(shown) + (" and so on" if len(numbers) > len(shown) else "")


Linear = tuple[int, tuple[int, ...]]


class _Writer:
    def __init__(self, graph: torch.fx.GraphModule, mesh: Mesh) -> None:
        self._graph = graph
        self._mesh = mesh
        self._coordinates: dict[int, torch.fx.Node] = {}

    def coordinates(self) -> dict[sympy.Symbol, int]:
        symbols = {symbol_of(node.meta["val"]): axis for axis, node in self._coordinates.items()}
        return {symbol: axis for symbol, axis in symbols.items() if symbol is not None}

    def rewrite(self, node: torch.fx.Node, values: Mapping[Path, Linear]) -> None:
        with self._graph.graph.inserting_before(node):
            written = {path: self._number(value) for path, value in values.items()}
        node.args = _replaced(node.args, ("args",), written)
        node.kwargs = _replaced(node.kwargs, ("kwargs",), written)

    def pick(self, node: torch.fx.Node, values: Mapping[Path, Linear]) -> None:
        """``pieces[number]`` for pieces of equal length: a slice of what was cut."""
        pieces = node.args[0]
        index = values.get(("args", 1))
        if not isinstance(pieces, torch.fx.Node) or index is None or len(values) != 1:
            raise DifferentGraphsError(f"`{value_name(node)}` is another piece on another rank", node)
        arguments: list[Any] = list(pieces.args)
        place = 1 if pieces.target is torch.ops.aten.unbind.int else 2
        dim: Any = arguments[place] if len(arguments) > place else pieces.kwargs.get("dim", 0)
        if pieces.target is torch.ops.aten.unbind.int:
            self._call_instead(node, torch.ops.aten.select.int, (arguments[0], dim, index))
            return
        lengths = {value.shape[dim] for value in pieces.meta["val"]} if pieces.target in _PIECES else set()
        if len(lengths) != 1:
            raise DifferentGraphsError(f"`{value_name(node)}` is another piece on another rank", node)
        length = lengths.pop()
        start = (index[0] * length, tuple(step * length for step in index[1]))
        end = (start[0] + length, start[1])
        self._call_instead(node, torch.ops.aten.slice.Tensor, (arguments[0], dim, start, end))

    def _call_instead(self, node: torch.fx.Node, target: Callable[..., Any], args: Sequence[Any]) -> None:
        with self._graph.graph.inserting_before(node):
            node.args = tuple(self._number(item) if isinstance(item, tuple) else item for item in args)
        # The node stays the same object: the boundary of the graph refers to it.
        node.target = target

    def _number(self, value: Linear) -> torch.fx.Node | int:
        result: Any = value[0]
        for axis, step in enumerate(value[1]):
            if step:
                part = self._call(operator.mul, self._coordinate(axis), step)
                result = part if result == 0 else self._call(operator.add, part, result)
        return result

    def _call(self, function: Callable[..., Any], *args: Any) -> torch.fx.Node:
        node = self._graph.graph.call_function(function, args)
        node.meta["val"] = function(*(item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in args))
        return node

    def _coordinate(self, axis: int) -> torch.fx.Node:
        if axis not in self._coordinates:
            self._coordinates[axis] = new_coordinate(self._graph, self._mesh, axis)
        return self._coordinates[axis]


def _replaced(value: Any, path: Path, written: Mapping[Path, Any]) -> Any:
    if path in written:
        return written[path]
    if isinstance(value, dict):
        return {key: _replaced(item, (*path, key), written) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_replaced(item, (*path, index), written) for index, item in enumerate(value)]
        return tuple(items) if type(value) is tuple else items
    if isinstance(value, slice):
        parts = (_replaced(getattr(value, part), (*path, part), written) for part in ("start", "stop", "step"))
        return slice(*parts)
    return value
