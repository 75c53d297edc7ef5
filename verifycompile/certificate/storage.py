"""Captured programs read from JSON (``writing.py`` writes them), with what torch recorded of each node.

Calls in a row may be written as being like earlier ones of other operands. That they are alike needs no comparison, as
they are of one description. Data that holds more than is read, or a node that nothing needs, is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.distributed.tensor  # pyright: ignore[reportUnusedImport]  # a mesh becomes a type of operators' arguments

# isort: split
import torch.distributed._ops.device_mesh  # pyright: ignore[reportUnusedImport]  # registers the coordinate operator
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Replicate

from verifycompile.lowering.recorded import reads_place
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role, Size
from verifycompile.question import Provenance
from verifycompile.torch_interface.dtensor.placements import block_shard, partial_of
from verifycompile.torch_interface.operators.expressions import expression_from_data, recorded_number, recorded_tensor

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
_LIKE_SEVERAL = frozenset({"names", "like", "operands", "count"})


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """In the place of an object that no proof reads, such as a device mesh."""

    kind: str


class StorageError(ValueError):
    """A program that cannot be stored, or data that is no stored program."""


class Block:
    """A call, or several in a row, and what they take from elsewhere (``operands``), in the order in which they do.

    Those of equal ``pattern`` are alike but for the operands: what is recorded of each is one object. ``sources``: the
    single calls that several are like. Of several those are ``made``, by their place, that others take (``taken``);
    the rest is made by ``create``, once they are asked for one by one.
    """

    def __init__(
        self,
        pattern: Hashable,
        operands: Sequence[torch.fx.Node],
        made: dict[int, torch.fx.Node],
        sources: Sequence[Block] = (),
        create: Callable[[str, Block], torch.fx.Node] | None = None,
    ) -> None:
        self.pattern, self.operands, self.made, self.taken = pattern, operands, made, tuple(made)
        self.sources = sources or (self,)
        self._create = create

    @property
    def call(self) -> torch.fx.Node:
        """The first call that there is: of a single one, this one."""
        return self.made[self.taken[0]]

    @functools.cached_property
    def singles(self) -> Sequence[Block]:
        """Each call by itself."""
        if self._create is None:
            return (self,)
        stands_for = dict(zip(outside_of(self.sources), self.operands, strict=True))
        for place, source in enumerate(self.sources):
            if place not in self.made:
                self.made[place] = self._create(f"{source.call.name}_of_{self.call.name}", source)
            stands_for[source.call] = self.made[place]
        return [_like(source, self.made[place], stands_for) for place, source in enumerate(self.sources)]


class StoredModule:
    """In the place of a graph module: a graph, the constants that it holds, and all its calls, in their order."""

    def __init__(
        self, graph: torch.fx.Graph, constants: Mapping[str, torch.Tensor | None], blocks: Sequence[Block]
    ) -> None:
        self.graph = graph
        self.blocks = blocks
        for name, value in constants.items():
            setattr(self, name, value)


@dataclasses.dataclass(frozen=True)
class UnregisteredOperator:
    """An operator that this process does not have: of its result nothing is known but what torch recorded."""

    name: str

    __name__ = "unregistered"

    def __call__(self, *_: object) -> None:
        raise TypeError(f"{self.name} is not registered")


_NOT_READ = UnregisteredOperator("a call like another one")
"""What a call of several calls, as long as they are not asked for one by one."""


def is_in_table(program: Program, node: torch.fx.Node) -> bool:
    """Whether a table of the program says what a node is: a group, or a coordinate of the rank."""
    return node.name in program.groups or reads_place(node)


def program_from_data(data: Mapping[str, Any]) -> Program:
    """The program that was written. Raises StorageError for anything else."""
    try:
        return _program_from_data(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise StorageError(f"no stored program: {type(error).__name__}: {error}") from error


def require_needed(program: Program) -> None:
    """Every node is an input, or an output needs it. Tables say what a group or a rank's coordinate is, no arguments.

    Raises StorageError.
    """
    module = cast("StoredModule", program.graph)
    needed = {item.node for item in (*program.inputs, *program.outputs)}
    unneeded: list[torch.fx.Node] = []
    for block in reversed(module.blocks):
        within = {block.sources[place].call for place in block.taken}
        unneeded += (block.made[place] for place in block.taken if block.made[place] not in needed)
        for call, operands in ((source.call, source.operands) for source in reversed(block.sources)):
            if call not in within or (is_in_table(program, call) and (call.args or call.kwargs)):
                unneeded.append(call)
            within.update(operands)
        needed.update(block.operands)
    unneeded += (node for node in module.graph.find_nodes(op="placeholder") if node not in needed)
    unneeded += (node for node in module.graph.find_nodes(op="get_attr") if node not in needed)
    if unneeded:
        raise StorageError(f"it holds what its programs do not need: the node `{unneeded[-1].name}`")


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


def outside_of(calls: Sequence[Block]) -> Mapping[torch.fx.Node, None]:
    """What single calls take from elsewhere."""
    own = {single.call for single in calls}
    return dict.fromkeys(operand for single in calls for operand in single.operands if operand not in own)


def _like(source: Block, node: torch.fx.Node, stands_for: Mapping[torch.fx.Node, torch.fx.Node]) -> Block:
    """A call that is like another one, of other operands."""
    args, kwargs = torch.fx.map_arg((source.call.args, source.call.kwargs), stands_for.__getitem__)
    node.target = source.call.target
    # Given when a node is made, torch would search them for symbolic sizes; set by its own setter, look it up.
    object.__setattr__(node, "args", args)
    object.__setattr__(node, "kwargs", kwargs)
    return Block(source.pattern, node.all_input_nodes, {0: node})


class _Reader:
    """The nodes of a program while they are read. ``groups``: the names of those that stand for a group."""

    def __init__(self, groups: Collection[str]) -> None:
        self.graph = torch.fx.Graph()
        self.nodes: dict[str, torch.fx.Node] = {}
        self.constants: dict[str, torch.Tensor | None] = {}
        self.blocks: list[Block] = []
        self._groups = groups
        self._singles: list[Block] = []
        self._places: dict[torch.fx.Node, int] = {}
        self._records: dict[str, Any] = {}
        self._number_taken = functools.cache(lambda first, count: len(outside_of(self._singles[first : first + count])))

    def read(self, item: Mapping[str, Any]) -> None:
        if "like" in item:
            _require_fields(item, _LIKE_SEVERAL if "count" in item else _LIKE)
            names, count = item.get("names") or [[0, item["name"]]], item.get("count", 1)
            self._read_alike(self._places[self.nodes[item["like"]]], count, names, item["operands"])
            return
        node = self._named(item["name"], _node_from_data(self.graph, item, self.nodes, self.constants))
        self.nodes[node.name] = node
        record = repr(item["value"])
        if record not in self._records:
            self._records[record] = value_from_data(item["value"], self.nodes)
        node.meta["val"] = self._records[record]
        if node.op == "call_function":
            self._add(Block(node, node.all_input_nodes, {0: node}))

    def _add(self, single: Block) -> None:
        self._places[single.call] = len(self._singles)
        self._singles.append(single)
        self.blocks.append(single)

    def _read_alike(self, first: int, count: int, names: Sequence[Any], operands: Sequence[str]) -> None:
        sources = self._singles[first : first + count]
        if count < 1 or len(sources) != count or len(dict(names)) != len(names):
            raise StorageError("more calls are like others than there are")
        if self._number_taken(first, count) != len(operands):
            raise StorageError("calls take more or less than those that they are like")
        taken = [self.nodes[operand] for operand in operands]
        made = {place: self._created(name, sources[place]) for place, name in names}
        self.nodes.update((node.name, node) for node in made.values())
        block = Block((first, count), taken, made, sources, self._created)
        if count == 1:
            self._add(*block.singles)
        else:
            self.blocks.append(block)

    def _created(self, name: str, source: Block) -> torch.fx.Node:
        """A call that is like another one, before it is read."""
        if name in self._groups or source.call.name in self._groups:
            raise StorageError("no group is like another call")
        node = self._named(name, self.graph.create_node("call_function", _NOT_READ, name=name))
        node.meta["val"] = source.call.meta["val"]
        return node

    def _named(self, name: str, node: torch.fx.Node) -> torch.fx.Node:
        if node.name != name:
            raise StorageError(f"two nodes are called `{name}`")
        return node


def _program_from_data(data: Mapping[str, Any]) -> Program:
    _require_fields(data, _PROGRAM)
    reader = _Reader(data["groups"].keys())
    for item in data["nodes"]:
        reader.read(item)
    graph, nodes = reader.graph, reader.nodes
    outputs = tuple(_output_from_data(item, nodes, index) for index, item in enumerate(data["outputs"]))
    graph.output(tuple(output.node for output in outputs))
    return Program(
        cast("torch.fx.GraphModule", StoredModule(graph, reader.constants, reader.blocks)),
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
