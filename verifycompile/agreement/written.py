"""A program as data in which nothing depends on the rank that captured it but what the rank really does.

Nodes are numbered in their order, process groups are the mesh axes that they span, devices are kinds of devices. Equal
programs of two ranks are equal data, whatever their nodes and groups are called, and the data is a program again.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import operator
from collections.abc import Mapping
from typing import Any, cast

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement

from verifycompile.assumption import from_data, to_data
from verifycompile.certificate.storage import StorageError, placements_from_data, target_from_text, value_from_data
from verifycompile.certificate.writing import placements_to_data, target_to_text, value_to_data
from verifycompile.lowering.recorded import reads_memory
from verifycompile.program import (
    Blocker,
    Mesh,
    MeshAxis,
    OutputKind,
    Program,
    ProgramInput,
    ProgramOutput,
    Role,
    Size,
)
from verifycompile.torch_interface.operators.contents import content_of
from verifycompile.torch_interface.operators.expressions import expression_from_data
from verifycompile.torch_interface.operators.recorded_values import RecordedValues, hints_of
from verifycompile.torch_interface.operators.schema import draws_random_numbers
from verifycompile.torch_interface.operators.shapes import symbol_of
from verifycompile.torch_interface.operators.written_expressions import expression_to_data
from verifycompile.torch_interface.ranks.rank_values import COLLECTIVE_NAMESPACES, COORDINATE, namespace
from verifycompile.walks import reached

EXCHANGED = 1 << 16
"""A tensor constant of up to so many elements is compared and exchanged as it is, a larger one by ``content_of``."""
_PLACES = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclasses.dataclass(frozen=True)
class Written:
    """``data``: what a program is, as JSON has it. ``places``: where in the user's files its nodes come from."""

    data: Mapping[str, Any]
    places: Mapping[str, Any]

    @property
    def digest(self) -> str:
        return digest_of(self.data)


def digest_of(data: object) -> str:
    """A short text that is another one for other data."""
    return digest_of_bytes(json.dumps(data, separators=(",", ":")).encode())


def digest_of_bytes(content: bytes) -> str:
    """The same of bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write(program: Program) -> Written:
    """Raises ``StorageError`` for a program that holds what no text can say."""
    return _Writer(program).written()


class _Writer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers: dict[torch.fx.Node, int] = {}
        self._expressions: dict[sympy.Basic, Any] = {}
        self._nodes = program.graph.graph.nodes
        self._reads_memory = False
        """Without such a node it does not matter where in its memory a value begins, which is another place by rank."""
        self._inputs = [item for item in program.inputs if item.role is not Role.SIZE or item.node.users]

    def written(self) -> Written:
        program = self._program
        needed = self._needed()
        nodes = [node for node in self._nodes if node in needed]
        self._reads_memory = any(reads_memory(node) for node in nodes)
        self._numbers = {node: number for number, node in enumerate(nodes)}
        mesh = program.mesh
        data = {
            "nodes": [self._node(node) for node in nodes],
            "inputs": [self._input(item) for item in self._inputs],
            "outputs": [self._output(item, position) for position, item in enumerate(program.outputs)],
            "mesh": None if mesh is None else [[[a.name, a.size] for a in mesh.axes], list(mesh.ranks)],
            "coordinates": sorted([self._expression(symbol), axis] for symbol, axis in program.coordinates.items()),
            "size_values": [[self._expression(s), self._expression(e)] for s, e in program.size_values.items()],
            "guards": [self._expression(guard) for guard in program.guards],
            "blockers": [
                [b.code, b.message, None if b.node is None else self._numbers.get(b.node)] for b in program.blockers
            ],
            "piecewise": program.piecewise,
        }
        values = [node.meta.get("val") for node in nodes]
        answered = () if program.own is None else program.own.unless_compared
        places = {
            "hints": hints_of(values),
            "nodes": [{key: _place(node.meta[key]) for key in _PLACES if node.meta.get(key)} for node in nodes],
            "backward": [number for number, node in enumerate(nodes) if node.meta.get("autograd_backward")],
            "assumptions": to_data(text for text in program.assumptions if text not in answered),
            "seconds": program.seconds,
        }
        return Written(data, places)

    def _needed(self) -> set[torch.fx.Node]:
        """What the outputs need, and what is done whether they need it or not."""
        starts = [item.node for item in self._program.outputs]
        starts += [b.node for b in self._program.blockers if b.node is not None and b.node.op != "output"]
        starts += [n for n in self._nodes if namespace(n) in COLLECTIVE_NAMESPACES or _draws(n)]
        needed = reached(starts, lambda node: () if self._axes(node) is not None else node.all_input_nodes)
        return {*(item.node for item in self._inputs), *needed}

    def _axes(self, node: torch.fx.Node) -> Any:
        """The mesh axes behind a node that is a process group or a coordinate."""
        spans = self._program.groups.get(node.name)
        if spans is not None:
            return list(spans)
        symbol = symbol_of(node.meta.get("val"))
        is_read = symbol in self._program.coordinates and namespace(node) == "device_mesh"
        return self._program.coordinates[symbol] if is_read and symbol is not None else None

    def _node(self, node: torch.fx.Node) -> list[Any]:
        value, axes = self._recorded(node.meta.get("val")), self._axes(node)
        if node.op == "placeholder":
            return ["input", value, axes]
        if axes is not None:
            return ["group" if isinstance(axes, list) else "coordinate", value, axes]
        if node.op == "get_attr":
            return ["constant", value, self._constant(node)]
        if node.op != "call_function":
            raise StorageError(f"a graph node of kind `{node.op}`")
        kwargs = {key: self._argument(item) for key, item in node.kwargs.items()}
        return ["call", value, target_to_text(node.target), [self._argument(item) for item in node.args], kwargs]

    def _constant(self, node: torch.fx.Node) -> Any:
        value: Any = operator.attrgetter(str(node.target))(self._program.graph)
        if isinstance(value, torch.fx.GraphModule):
            return ["graph", value.code]
        if not isinstance(value, torch.Tensor):
            return None
        content = content_of(value, EXCHANGED)
        if content is None:
            return ["unknown"]
        form = [str(value.dtype), list(value.shape)]
        if value.numel() > EXCHANGED:
            return ["digest", *form, digest_of_bytes(content)]
        return ["elements", *form, base64.b64encode(content).decode()]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return {"node": self._numbers[value]}
        if isinstance(value, str) and value in self._program.groups:
            return {"axes": list(self._program.groups[value])}
        if isinstance(value, torch.device):
            return {"device": value.type}
        if isinstance(value, list):
            return [self._argument(item) for item in cast("list[Any]", value)]
        if isinstance(value, tuple):
            return {"tuple": [self._argument(item) for item in cast("tuple[Any, ...]", value)]}
        if isinstance(value, slice):
            return {"slice": [self._argument(item) for item in (value.start, value.stop, value.step)]}
        if isinstance(value, _NUMBERS):
            return self._recorded(value)
        return value_to_data(value)

    def _recorded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            strided = value.layout is torch.strided
            memory = (value.stride(), value.storage_offset() if self._reads_memory else 0) if strided else ((), 0)
            sizes = [[self._size(size) for size in numbers] for numbers in (value.shape, memory[0])]
            return {"tensor": str(value.dtype), "sizes": sizes, "offset": self._size(memory[1])}
        if isinstance(value, (list, tuple)):
            return [self._recorded(item) for item in cast("list[Any]", value)]
        if isinstance(value, _NUMBERS):
            return {"number": type(value).__name__, "expression": self._expression(value.node.expr)}
        return value if isinstance(value, (bool, int, float)) else None

    def _size(self, size: Any) -> Any:
        return self._expression(size.node.expr) if isinstance(size, torch.SymInt) else int(size)

    def _expression(self, expression: sympy.Basic | int) -> Any:
        if isinstance(expression, int):
            return expression
        if expression not in self._expressions:
            self._expressions[expression] = expression_to_data(expression)
        return self._expressions[expression]

    def _sizes(self, sizes: tuple[Size, ...] | None) -> list[Any] | None:
        return None if sizes is None else [self._expression(size) for size in sizes]

    def _input(self, item: ProgramInput) -> list[Any]:
        return [
            self._numbers[item.node], item.role.value, item.name, _placements(item.placements),
            self._sizes(item.global_shape),
            item.requires_grad, item.assumed, sorted(item.open_axes),
        ]  # fmt: skip

    def _output(self, item: ProgramOutput, position: int) -> list[Any]:
        # What is read back returns its outputs in this order. A rank with a further size as input has another one.
        index = position if item.index >= 0 else item.index
        return [
            self._numbers[item.node], item.kind.value, item.name, index, _placements(item.placements),
            item.declared, sorted(item.open_axes), sorted(item.outer_mean), item.requires_grad,
            self._sizes(item.global_shape), self._sizes(item.global_stride),
        ]  # fmt: skip


def _placements(placements: tuple[Placement, ...] | None) -> Any:
    try:
        return placements_to_data(placements)
    except StorageError:
        return str(placements)  # compared, and not made a placement again


def _draws(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and draws_random_numbers(node.target, node.args, node.kwargs)


def _place(value: Any) -> Any:
    return value if isinstance(value, str) else [str(entry[0]) for entry in value.values()]


def large_constants(program: Program) -> dict[str, torch.Tensor]:
    """The tensor constants of a program that are not exchanged, by digest."""
    held = (getattr(program.graph, str(node.target), None) for node in program.graph.graph.find_nodes(op="get_attr"))
    found = [value for value in held if isinstance(value, torch.Tensor) and value.numel() > EXCHANGED]
    contents = ((content_of(value, EXCHANGED), value) for value in found)
    return {digest_of_bytes(content): value for content, value in contents if content is not None}


# ---------------------------------------------------------------------------------------------------- and back


def read(written: Written, constants: Mapping[str, torch.Tensor]) -> Program:
    """The program that was written, its values as torch would record them.

    ``constants``: digest -> tensor constant, for those that are too large to be exchanged.
    Raises ``StorageError`` for anything else.
    """
    try:
        return _Reader(written, constants).program()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise StorageError(f"no written program: {type(error).__name__}: {error}") from error


def group_of_axes() -> None:
    """What a node that stands for a process group calls: the program's table says which mesh axes it spans."""


class _Reader:
    def __init__(self, written: Written, constants: Mapping[str, torch.Tensor]) -> None:
        self._data, self._places = written.data, written.places
        self._values = RecordedValues(written.places["hints"])
        self._constants = constants
        self._graph = torch.fx.Graph()
        self._root = torch.nn.Module()
        self._nodes: list[torch.fx.Node] = []
        self._groups: dict[str, tuple[int, ...]] = {}

    def program(self) -> Program:
        data, places = self._data, self._places
        for number, (item, place) in enumerate(zip(data["nodes"], places["nodes"], strict=True)):
            node = self._node(number, item)
            node.meta["val"] = self._recorded(item[1])
            for key, content in place.items():
                node.meta[key] = content if isinstance(content, str) else {i: (p,) for i, p in enumerate(content)}
            self._nodes.append(node)
        for number in places["backward"]:
            self._nodes[number].meta["autograd_backward"] = True
        inputs = tuple(self._input(item) for item in data["inputs"])
        outputs = tuple(self._output(item) for item in data["outputs"])
        self._graph.output(tuple(output.node for output in outputs))
        return Program(
            torch.fx.GraphModule(self._root, self._graph),
            inputs,
            outputs,
            _mesh(data["mesh"]),
            coordinates={cast("sympy.Symbol", _expression(s)): int(axis) for s, axis in data["coordinates"]},
            groups=self._groups,
            size_values={cast("sympy.Symbol", _expression(s)): _expression(e) for s, e in data["size_values"]},
            guards=tuple(_expression(guard) for guard in data["guards"]),
            blockers=tuple(
                Blocker(None if node is None else self._nodes[node], code, message)
                for code, message, node in data["blockers"]
            ),
            assumptions=from_data(places["assumptions"]),
            seconds=places["seconds"],
            piecewise=data["piecewise"],
        )

    def _node(self, number: int, item: list[Any]) -> torch.fx.Node:
        kind, name = item[0], f"node_{number}"
        if kind in ("input", "group") and item[2] is not None:
            self._groups[name] = tuple(item[2])
        if kind == "input":
            return self._graph.placeholder(name)
        if kind == "constant":
            self._root.register_buffer(name, self._constant(item[2]))
            return self._graph.create_node("get_attr", name, name=name)
        # How a program comes to its groups and coordinates is no part of what it computes.
        if kind == "group":
            return self._graph.create_node("call_function", group_of_axes, (), name=name)
        if kind == "coordinate":
            return self._graph.create_node("call_function", COORDINATE, (None, item[2]), name=name)
        args = tuple(self._argument(value) for value in item[3])
        kwargs = {key: self._argument(value) for key, value in item[4].items()}
        return self._graph.create_node("call_function", target_from_text(str(item[2])), args, kwargs, name)

    def _constant(self, data: Any) -> torch.Tensor | None:
        if data is None:
            return None
        if data[0] == "digest":
            if data[3] not in self._constants:
                raise StorageError("a tensor constant is too large to be exchanged")
            return self._constants[data[3]]
        if data[0] != "elements":
            raise StorageError("a tensor constant has no readable content")
        dtype = getattr(torch, data[1].removeprefix("torch."))
        content = base64.b64decode(data[3])
        flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
        return flat.reshape(data[2])

    def _argument(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self._argument(item) for item in cast("list[Any]", data)]
        if not isinstance(data, dict):
            return data
        item = cast("dict[str, Any]", data)
        if "node" in item:
            return self._nodes[item["node"]]
        if "axes" in item:
            name = "axes " + ",".join(map(str, item["axes"]))
            self._groups[name] = tuple(item["axes"])
            return name
        if "tuple" in item:
            return tuple(self._argument(value) for value in item["tuple"])
        if "slice" in item:
            return slice(*(self._argument(value) for value in item["slice"]))
        return self._recorded(item) if "number" in item else value_from_data(item, {})

    def _recorded(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self._recorded(item) for item in cast("list[Any]", data)]
        if not isinstance(data, dict):
            return data
        item = cast("dict[str, Any]", data)
        if "number" in item:
            return self._values.number(item["number"], _expression(item["expression"]))
        shape, stride = ([self._size(size) for size in sizes] for sizes in item["sizes"])
        dtype = getattr(torch, item["tensor"].removeprefix("torch."))
        return self._values.tensor(shape, stride, self._size(item["offset"]), dtype)

    def _size(self, data: Any) -> Any:
        return data if isinstance(data, int) else self._values.number("SymInt", _expression(data))

    def _input(self, item: list[Any]) -> ProgramInput:
        node, role, name, placements, shape, requires_grad, assumed, open_axes = item
        return ProgramInput(
            self._nodes[node], Role(role), name, placements_from_data(placements), _sizes(shape), requires_grad,
            assumed, frozenset(open_axes),
        )  # fmt: skip

    def _output(self, item: list[Any]) -> ProgramOutput:
        node, kind, name, index, placements, declared, open_axes, outer_mean, requires_grad, shape, stride = item
        return ProgramOutput(
            self._nodes[node], OutputKind(kind), name, index, placements_from_data(placements), declared,
            frozenset(open_axes), frozenset(outer_mean), requires_grad, _sizes(shape), _sizes(stride),
        )  # fmt: skip


def _mesh(data: Any) -> Mesh | None:
    if data is None:
        return None
    axes, ranks = data
    return Mesh(tuple(MeshAxis(str(name), int(size)) for name, size in axes), tuple(ranks))


def _expression(data: Any) -> sympy.Expr:
    return cast("sympy.Expr", expression_from_data(data))


def _sizes(data: list[Any] | None) -> tuple[Size, ...] | None:
    return None if data is None else tuple(_size(size) for size in data)


def _size(data: Any) -> Size:
    return data if isinstance(data, int) else _expression(data)
