"""Captured programs read from JSON (``writing.py`` writes them), with what torch recorded of each node.

Calls in a row may be written as being like earlier ones of other operands. That they are alike needs no comparison, as
they are of one description. Data that holds more than is read, or a node that nothing needs, is refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.distributed.tensor  # pyright: ignore[reportUnusedImport]  # a mesh becomes a type of operators' arguments

# isort: split
import torch.distributed._ops.device_mesh  # pyright: ignore[reportUnusedImport]  # registers the coordinate operator
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role, Size
from verifycompile.question import Provenance
from verifycompile.torch_interface.expressions import expression_from_data, recorded_number, recorded_tensor
from verifycompile.torch_interface.placements import block_shard, partial_of

_MODULES = frozenset({"_operator", "operator", "math", "torch", "torch.sym"})
"""Where functions of a graph that are no operators of torch may come from."""

_PROGRAM = frozenset({
    "nodes", "inputs", "outputs", "mesh", "coordinates", "groups", "size_values", "guards", "assumptions", "piecewise",
    "by_definition", "provenance",
})  # fmt: skip
_INPUT = frozenset({"node", "role", "name", "placements", "global_shape", "assumed", "open_axes"})
_OUTPUT = frozenset({
    "node", "kind", "name", "placements", "open_axes", "outer_mean", "requires_grad", "global_shape", "global_stride",
})  # fmt: skip
_NODES = {
    "placeholder": frozenset({"name", "op", "value"}),
    "get_attr": frozenset({"name", "op", "value", "constant"}),
    "call_function": frozenset({"name", "op", "value", "target", "args", "kwargs"}),
}
_LIKE = frozenset({"name", "like", "operands"})
_LIKE_SEVERAL = frozenset({"names", "like", "operands"})


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """In the place of an object that no proof reads, such as a device mesh."""

    kind: str


class StorageError(ValueError):
    """A program that cannot be stored, or data that is no stored program."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Calls in a row, and what they take from elsewhere, in the order in which they take it first.

    Those of equal ``pattern`` are alike but for the ``operands``: what is recorded of each is one object.
    """

    calls: Sequence[torch.fx.Node]
    pattern: Hashable
    operands: Sequence[torch.fx.Node]


class StoredModule:
    """In the place of a graph module: a graph, and the constants that it holds.

    ``patterns``: of each call the first one that is like it. ``repeats``: by their first call, calls that are like
    several in a row.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        constants: Mapping[str, torch.Tensor | None],
        patterns: Mapping[torch.fx.Node, torch.fx.Node],
        repeats: Mapping[torch.fx.Node, Block],
    ) -> None:
        self.graph = graph
        self.patterns = patterns
        self.repeats = repeats
        for name, value in constants.items():
            setattr(self, name, value)

    def blocks(self, calls: Sequence[torch.fx.Node]) -> Iterator[Block]:
        """These calls, which follow one another: those that are like several in a row together, others alone."""
        position = 0
        while position < len(calls):
            block = self.repeats.get(calls[position])
            if block is None or len(block.calls) > len(calls) - position:
                block = self.single(calls[position])
            yield block
            position += len(block.calls)

    def single(self, call: torch.fx.Node) -> Block:
        """A call alone."""
        return Block((call,), self.patterns[call], call.all_input_nodes)


@dataclasses.dataclass(frozen=True)
class UnregisteredOperator:
    """An operator that this process does not have: of its result nothing is known but what torch recorded."""

    name: str

    __name__ = "unregistered"

    def __call__(self, *_: object) -> None:
        raise TypeError(f"{self.name} is not registered")


def program_from_data(data: Mapping[str, Any]) -> Program:
    """The program that was written. Raises StorageError for anything else."""
    try:
        return _program_from_data(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise StorageError(f"no stored program: {type(error).__name__}: {error}") from error


def require_needed(program: Program) -> None:
    """Every node is an input, or an output needs it. The program's table says what a group is, not its arguments.

    Raises StorageError.
    """
    needed = {item.node for item in (*program.inputs, *program.outputs)}
    for node in reversed(program.graph.graph.nodes):
        if node in needed and not (node.name in program.groups and (node.args or node.kwargs)):
            needed.update(node.all_input_nodes)
        elif node.op != "output":
            raise StorageError(f"it holds what its programs do not need: the node `{node.name}`")


def _require_fields(item: Mapping[str, Any], fields: Collection[str]) -> None:
    unread = item.keys() - fields
    if unread:
        raise StorageError(f"it holds what its programs do not need: `{min(unread)}`")


def _node_from_data(
    graph: torch.fx.Graph,
    item: Mapping[str, Any],
    nodes: Mapping[str, torch.fx.Node],
    constants: dict[str, torch.Tensor | None],
) -> torch.fx.Node:
    name, kind = item["name"], item["op"]
    if kind not in _NODES:
        raise StorageError(f"a graph node of kind `{kind}`")
    _require_fields(item, _NODES[kind])
    if kind == "placeholder":
        return graph.create_node("placeholder", name, name=name)
    if kind == "get_attr":
        constants[f"constant_{name}"] = _constant_from_data(item["constant"])
        return graph.create_node("get_attr", f"constant_{name}", name=name)
    args = tuple(value_from_data(item["args"], nodes))
    kwargs = {key: value_from_data(value, nodes) for key, value in item.get("kwargs", {}).items()}
    return graph.create_node(kind, target_from_text(item["target"]), args, kwargs, name=name)


def _alike(
    graph: torch.fx.Graph, names: Sequence[str], sources: Sequence[torch.fx.Node], operands: Sequence[torch.fx.Node]
) -> Iterator[torch.fx.Node]:
    """Calls like other ones, of other operands."""
    own = set(sources)
    taken = dict.fromkeys(n for source in sources for n in source.all_input_nodes if n not in own)
    stands_for = dict(zip(taken, operands, strict=True))
    for name, source in zip(names, sources, strict=True):
        args, kwargs = torch.fx.map_arg((source.args, source.kwargs), stands_for.__getitem__)
        node = graph.create_node("call_function", source.target, name=name)
        # Given above, torch would search them for symbolic sizes; set by its own setter, look the node up in its index.
        object.__setattr__(node, "args", args)
        object.__setattr__(node, "kwargs", kwargs)
        node.meta["val"] = source.meta["val"]
        stands_for[source] = node
        yield node


def _program_from_data(data: Mapping[str, Any]) -> Program:
    _require_fields(data, _PROGRAM)
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    constants: dict[str, torch.Tensor | None] = {}
    patterns: dict[torch.fx.Node, torch.fx.Node] = {}
    repeats: dict[torch.fx.Node, Block] = {}
    calls: list[torch.fx.Node] = []
    places: dict[torch.fx.Node, int] = {}
    records: dict[str, Any] = {}
    for item in data["nodes"]:
        if "like" in item:
            _require_fields(item, _LIKE_SEVERAL if "names" in item else _LIKE)
            names = item["names"] if "names" in item else [item["name"]]
            operands = [nodes[operand] for operand in item["operands"]]
            place = places[nodes[item["like"]]]
            sources = calls[place : place + len(names)]
            if not names or not data["groups"].keys().isdisjoint((*names, *(source.name for source in sources))):
                raise StorageError("no call, or a group, is like another one")
            found = [*_alike(graph, names, sources, operands)]
            patterns.update((node, patterns[source]) for node, source in zip(found, sources, strict=True))
            if "names" in item:
                repeats[found[0]] = Block(found, (place, len(found)), operands)
        else:
            names, node = [item["name"]], _node_from_data(graph, item, nodes, constants)
            if node.op == "call_function":
                patterns[node] = node
            record = json.dumps(item["value"])
            if record not in records:
                records[record] = value_from_data(item["value"], nodes)
            node.meta["val"] = records[record]
            found = [node]
        for name, node in zip(names, found, strict=True):
            if node.name != name:
                raise StorageError(f"two nodes are called `{name}`")
            nodes[name] = node
            if node.op == "call_function":
                places[node] = len(calls)
                calls.append(node)
    outputs = tuple(_output_from_data(item, nodes, index) for index, item in enumerate(data["outputs"]))
    graph.output(tuple(output.node for output in outputs))
    return Program(
        cast("torch.fx.GraphModule", StoredModule(graph, constants, patterns, repeats)),
        tuple(_input_from_data(item, nodes) for item in data["inputs"]),
        outputs,
        None if data["mesh"] is None else _mesh_of([MeshAxis(str(name), int(size)) for name, size in data["mesh"]]),
        coordinates={_symbol(s): int(axis) for s, axis in data["coordinates"]},
        groups={name: tuple(int(axis) for axis in axes) for name, axes in data["groups"].items()},
        size_values={_symbol(s): cast("sympy.Expr", expression_from_data(e)) for s, e in data["size_values"]},
        guards=tuple(expression_from_data(guard) for guard in data["guards"]),
        assumptions=tuple(str(text) for text in data["assumptions"]),
        piecewise=bool(data["piecewise"]),
        by_definition=bool(data["by_definition"]),
        provenance=Provenance(data["provenance"]),
    )


def _mesh_of(axes: Sequence[MeshAxis]) -> Mesh:
    """Which number a rank has in its job is no part of what is proved."""
    return Mesh(tuple(axes), tuple(range(math.prod(axis.size for axis in axes))))


def _symbol(data: Any) -> sympy.Symbol:
    symbol = expression_from_data(data)
    if not isinstance(symbol, sympy.Symbol):
        raise StorageError(f"{symbol} is no symbol")
    return symbol


def _constant_from_data(data: Any) -> torch.Tensor | None:
    if data is None:
        return None
    _require_fields(data, ("dtype", "shape", "content"))
    dtype = _from_torch(data["dtype"], torch.dtype)
    return torch.tensor(value_from_data(data["content"], {}), dtype=dtype).reshape(data["shape"])


def _from_torch(text: str, kind: Any) -> Any:
    value = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(value, kind):
        raise StorageError(f"`{text}` is not what is read of torch here")
    return value


def target_from_text(text: str) -> Any:
    """What a node of a graph calls, of which the name was written."""
    module, colon, name = text.partition(":")
    if colon:
        if module not in _MODULES:
            raise StorageError(f"a call of `{text}`")
        return getattr(importlib.import_module(module), name)
    namespace, operator, overload = text.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return UnregisteredOperator(text) if packet is None else getattr(packet, overload)


def value_from_data(data: Any, nodes: Mapping[str, torch.fx.Node]) -> Any:
    """What torch recorded of a node, or an argument of a call."""
    if isinstance(data, list):
        return [value_from_data(item, nodes) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    item = cast("dict[str, Any]", data)
    if "tensor" in item:
        _require_fields(item, ("tensor", "shape", "stride", "offset") if "offset" in item else ("tensor", "shape"))
        shape, stride = (value_from_data(item.get(key, []), nodes) for key in ("shape", "stride"))
        offset = value_from_data(item.get("offset"), nodes)
        return recorded_tensor(shape, _from_torch(item["tensor"], torch.dtype), stride, offset)
    if "number" in item:
        _require_fields(item, ("number", "expression"))
        return recorded_number(item["number"], expression_from_data(item["expression"]))
    ((kind, content),) = item.items()
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*content)
    if kind == "tuple":
        return tuple(value_from_data(v, nodes) for v in content)
    if kind == "node":
        return nodes[content]
    if kind == "expression":
        return expression_from_data(content)
    if kind == "torch":
        return _from_torch(content, torch.dtype | torch.layout | torch.memory_format)
    if kind == "device":
        return torch.device(content)
    if kind == "slice":
        return slice(*(value_from_data(v, nodes) for v in content))
    if kind == "object":
        return StoredObject(str(content))
    raise StorageError(f"a value of kind `{kind}`")


def _input_from_data(item: Mapping[str, Any], nodes: Mapping[str, torch.fx.Node]) -> ProgramInput:
    _require_fields(item, _INPUT)
    return ProgramInput(
        nodes[item["node"]],
        Role(item["role"]),
        item["name"],
        placements_from_data(item["placements"]),
        _sizes_from_data(item["global_shape"]),
        assumed=item["assumed"],
        open_axes=frozenset(item["open_axes"]),
    )


def _output_from_data(item: Mapping[str, Any], nodes: Mapping[str, torch.fx.Node], index: int) -> ProgramOutput:
    _require_fields(item, _OUTPUT)
    return ProgramOutput(
        nodes[item["node"]],
        OutputKind(item["kind"]),
        item["name"],
        index,
        placements_from_data(item["placements"]),
        open_axes=frozenset(item["open_axes"]),
        outer_mean=frozenset(item["outer_mean"]),
        requires_grad=item["requires_grad"],
        global_shape=_sizes_from_data(item["global_shape"]),
        global_stride=_sizes_from_data(item["global_stride"]),
    )


def _sizes_from_data(data: Any) -> tuple[Size, ...] | None:
    if data is None:
        return None
    return tuple(s if isinstance(s, int) else cast("sympy.Expr", expression_from_data(s)) for s in data)


def placements_from_data(data: Any) -> tuple[Placement, ...] | None:
    """One placement for each mesh axis."""
    return None if data is None else tuple(_placement_from_data(item) for item in data)


def _placement_from_data(data: Any) -> Placement:
    kind, *rest = data
    if kind == "shard":
        return block_shard(*rest)
    if kind == "partial":
        return partial_of(*rest)
    if kind == "replicate" and not rest:
        return Replicate()
    raise StorageError(f"no placement: {data}")
