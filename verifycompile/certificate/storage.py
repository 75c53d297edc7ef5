"""Captured programs as JSON, and back: the nodes that the outputs need, with what torch recorded of each.

A call that differs from an earlier one in its operands alone is written as being like that one, so layers that repeat
are read once, and that two calls are alike needs no comparison: they are made of one description.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.distributed.tensor  # pyright: ignore[reportUnusedImport]  # a mesh becomes a type of operators' arguments

# isort: split
import torch.distributed._ops.device_mesh  # pyright: ignore[reportUnusedImport]  # registers the coordinate operator
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate

from verifycompile.lowering.recorded import constant_content
from verifycompile.program import Mesh, MeshAxis, OutputKind, Program, ProgramInput, ProgramOutput, Role, Size
from verifycompile.question import Provenance
from verifycompile.torch_interface.expressions import (
    expression_from_data,
    expression_to_data,
    recorded_number,
    recorded_tensor,
)
from verifycompile.torch_interface.placements import (
    block_shard,
    is_known,
    outer_blocks,
    partial_of,
    reduction_name,
    sharded_dimension,
)
from verifycompile.torch_interface.schema import is_overload

_MODULES = frozenset({"_operator", "operator", "math", "torch", "torch.sym"})
"""Where functions of a graph that are no operators of torch may come from."""


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """In the place of an object that no proof reads, such as a device mesh."""

    kind: str


class StorageError(ValueError):
    """A program that cannot be stored, or data that is no stored program."""


# ------------------------------------------------------------------------------------------------ to data


def program_to_data(program: Program, order: Sequence[torch.fx.Node] = ()) -> dict[str, Any]:
    """The program as JSON has it. Raises StorageError for a program that holds what no text can say.

    ``order``: in which order calls are written; each behind what it takes.
    """
    if program.blockers:
        raise StorageError(f"a program that is blocked: {program.blockers[0].message}")
    return {
        "nodes": _nodes_to_data(program, order),
        "inputs": [_input_to_data(item) for item in program.inputs],
        "outputs": [_output_to_data(item) for item in program.outputs],
        "mesh": None
        if program.mesh is None
        else {"axes": [[axis.name, axis.size] for axis in program.mesh.axes], "ranks": list(program.mesh.ranks)},
        "coordinates": [[expression_to_data(symbol), axis] for symbol, axis in program.coordinates.items()],
        "groups": {name: list(axes) for name, axes in program.groups.items()},
        "size_values": [[expression_to_data(s), expression_to_data(e)] for s, e in program.size_values.items()],
        "guards": [expression_to_data(guard) for guard in program.guards],
        "assumptions": list(program.assumptions),
        "piecewise": program.piecewise,
        "provenance": program.provenance.value,
    }


def _needed(program: Program) -> set[torch.fx.Node]:
    found = {item.node for item in program.inputs}
    pending = [item.node for item in program.outputs]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(() if node.name in program.groups else node.all_input_nodes)
    return found


def in_order(program: Program, order: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """All nodes that the outputs need: those of ``order`` in this order, each behind what it takes."""
    needed = _needed(program)
    found: dict[torch.fx.Node, None] = {}
    given = (node for node in program.graph.graph.nodes if node.op != "call_function" and node in needed)
    for wanted in (*given, *order, *(node for node in program.graph.graph.nodes if node in needed)):
        stack = [wanted]
        while stack:
            node = stack[-1]
            taken = () if node.name in program.groups else node.all_input_nodes
            missing = [n for n in taken if n not in found] if node not in found else []
            if missing:
                stack.extend(reversed(missing))
                continue
            found[stack.pop()] = None
    return list(found)


def _nodes_to_data(program: Program, order: Sequence[torch.fx.Node]) -> list[dict[str, Any]]:
    stored = program.graph.patterns if isinstance(program.graph, StoredModule) else {}
    patterns: dict[Hashable, str] = {}
    written: list[dict[str, Any]] = []
    for node in in_order(program, order):
        data: dict[str, Any] | None = None
        if node.op == "call_function" and node.name not in program.groups:
            pattern: Hashable = stored.get(node)
            if pattern is None:
                data = _node_to_data(node, program)
                pattern = json.dumps(_pattern_of(data, node), sort_keys=True)
            first = patterns.setdefault(pattern, node.name)
            if first != node.name:
                data = {"name": node.name, "like": first, "operands": [n.name for n in node.all_input_nodes]}
        written.append(data or _node_to_data(node, program))
    return written


def _node_to_data(node: torch.fx.Node, program: Program) -> dict[str, Any]:
    data: dict[str, Any] = {"name": node.name, "op": node.op, "value": value_to_data(node.meta.get("val"))}
    if node.op == "call_function":
        # The axes of a group are in the program's table: how the program came to it is no part of what is proved.
        args = [] if node.name in program.groups else list(node.args)
        data |= {"target": target_to_text(node.target), "args": value_to_data(args)}
        if node.kwargs:
            data["kwargs"] = {name: value_to_data(value) for name, value in node.kwargs.items()}
    elif node.op == "get_attr":
        data["constant"] = _constant_to_data(node, program)
    elif node.op != "placeholder":
        raise StorageError(f"a graph node of kind `{node.op}`")
    return data


def _pattern_of(data: Mapping[str, Any], node: torch.fx.Node) -> Any:
    """What is written of a call but its name, with the numbers of its operands in place of theirs."""
    numbers = {operand.name: number for number, operand in enumerate(node.all_input_nodes)}

    def numbered(item: Any) -> Any:
        if isinstance(item, list):
            return [numbered(part) for part in cast("list[Any]", item)]
        if not isinstance(item, dict):
            return item
        content = cast("dict[str, Any]", item)
        if content.keys() == {"node"}:
            return {"operand": numbers[content["node"]]}
        return {name: numbered(part) for name, part in content.items()}

    return {name: numbered(part) for name, part in data.items() if name != "name"}


def _constant_to_data(node: torch.fx.Node, program: Program) -> Any:
    value: Any = operator.attrgetter(str(node.target))(program.graph)
    if not isinstance(value, torch.Tensor):
        return None
    content = constant_content(value)
    if content is None:
        raise StorageError(f"the constant `{node.target}` has no readable content")
    return {"dtype": str(value.dtype), "shape": list(value.shape), "content": value_to_data(list(content))}


def target_to_text(target: Any) -> str:
    """What a node of a graph calls, by name."""
    if is_overload(target):
        return str(target)
    return f"{target.__module__}:{target.__name__}"


def value_to_data(value: Any) -> Any:
    """What torch recorded of a node, or an argument of a call."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, list):
        return [value_to_data(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        return {"tuple": [value_to_data(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, torch.Tensor):
        return {"tensor": str(value.dtype), "shape": _numbers_to_data(value.shape)} | _memory_to_data(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {"number": type(value).__name__, "expression": expression_to_data(value.node.expr)}
    if isinstance(value, sympy.Basic):
        return {"expression": expression_to_data(value)}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [value_to_data(v) for v in (value.start, value.stop, value.step)]}
    return {"object": value.kind if isinstance(value, StoredObject) else type(value).__name__}


def _numbers_to_data(numbers: Iterable[Any]) -> list[Any]:
    return [value_to_data(number) for number in numbers]


def _memory_to_data(value: torch.Tensor) -> dict[str, Any]:
    """Where the elements lie: operators that read a tensor through its memory give other values at other strides."""
    if value.layout is not torch.strided:
        return {}
    return {"stride": _numbers_to_data(value.stride()), "offset": value_to_data(value.storage_offset())}


def _input_to_data(item: ProgramInput) -> dict[str, Any]:
    return {
        "node": item.node.name,
        "role": item.role.value,
        "name": item.name,
        "placements": placements_to_data(item.placements),
        "global_shape": _sizes_to_data(item.global_shape),
        "assumed": item.assumed,
        "open_axes": sorted(item.open_axes),
    }


def _sizes_to_data(sizes: tuple[Size, ...] | None) -> list[Any] | None:
    return None if sizes is None else [s if isinstance(s, int) else expression_to_data(s) for s in sizes]


def _output_to_data(item: ProgramOutput) -> dict[str, Any]:
    return {
        "node": item.node.name,
        "kind": item.kind.value,
        "name": item.name,
        "placements": placements_to_data(item.placements),
        "open_axes": sorted(item.open_axes),
        "outer_mean": sorted(item.outer_mean),
        "requires_grad": item.requires_grad,
        "global_shape": _sizes_to_data(item.global_shape),
        "global_stride": _sizes_to_data(item.global_stride),
    }


def placements_to_data(placements: tuple[Placement, ...] | None) -> list[Any] | None:
    """One string or list for each mesh axis."""
    return None if placements is None else [_placement_to_data(placement) for placement in placements]


def _placement_to_data(placement: Placement) -> Any:
    if not is_known(placement):
        raise StorageError(f"the placement {placement}")
    dim = sharded_dimension(placement)
    if dim is not None:
        return ["shard", dim, outer_blocks(placement)]
    return ["partial", reduction_name(placement)] if isinstance(placement, Partial) else ["replicate"]


# ------------------------------------------------------------------------------------------------ from data


class StoredModule:
    """In the place of a graph module: a graph, and the constants that it holds.

    ``patterns``: of each call the first one that is like it. What is recorded of both is one object.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        constants: Mapping[str, torch.Tensor | None],
        patterns: Mapping[torch.fx.Node, torch.fx.Node],
    ) -> None:
        self.graph = graph
        self.patterns = patterns
        for name, value in constants.items():
            setattr(self, name, value)


@dataclasses.dataclass(frozen=True)
class UnregisteredOperator:
    """An operator that this process does not have: of its result nothing is known but what torch recorded."""

    name: str

    __name__ = "unregistered"

    def __call__(self, *_: object) -> None:
        raise TypeError(f"{self.name} is not registered")


def program_from_data(data: Mapping[str, Any]) -> Program:
    """What ``program_to_data`` wrote. Raises StorageError for anything else."""
    try:
        return _program_from_data(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise StorageError(f"no stored program: {type(error).__name__}: {error}") from error


def _node_from_data(
    graph: torch.fx.Graph,
    item: Mapping[str, Any],
    nodes: Mapping[str, torch.fx.Node],
    constants: dict[str, torch.Tensor | None],
) -> torch.fx.Node:
    name, kind = item["name"], item["op"]
    if kind == "placeholder":
        return graph.create_node("placeholder", name, name=name)
    if kind == "get_attr":
        constants[f"constant_{name}"] = _constant_from_data(item["constant"])
        return graph.create_node("get_attr", f"constant_{name}", name=name)
    if kind == "call_function":
        args = tuple(value_from_data(item["args"], nodes))
        kwargs = {key: value_from_data(value, nodes) for key, value in item.get("kwargs", {}).items()}
        return graph.create_node(kind, target_from_text(item["target"]), args, kwargs, name=name)
    raise StorageError(f"a graph node of kind `{kind}`")


def _alike(
    graph: torch.fx.Graph, name: str, pattern: torch.fx.Node, operands: Sequence[torch.fx.Node]
) -> torch.fx.Node:
    """A call like another one, of other operands."""
    stands_for = dict(zip(pattern.all_input_nodes, operands, strict=True))
    args, kwargs = torch.fx.map_arg((pattern.args, pattern.kwargs), stands_for.__getitem__)
    node = graph.create_node("call_function", pattern.target, args, kwargs, name=name)
    node.meta["val"] = pattern.meta["val"]
    return node


def _program_from_data(data: Mapping[str, Any]) -> Program:
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    constants: dict[str, torch.Tensor | None] = {}
    patterns: dict[torch.fx.Node, torch.fx.Node] = {}
    records: dict[str, Any] = {}
    for item in data["nodes"]:
        name = item["name"]
        if name in nodes:
            raise StorageError(f"two nodes are called `{name}`")
        if "like" in item:
            pattern = nodes[item["like"]]
            node = _alike(graph, name, pattern, [nodes[operand] for operand in item["operands"]])
            patterns[node] = patterns[pattern]
        else:
            node = _node_from_data(graph, item, nodes, constants)
            if node.op == "call_function":
                patterns[node] = node
            record = json.dumps(item["value"])
            if record not in records:
                records[record] = value_from_data(item["value"], nodes)
            node.meta["val"] = records[record]
        if node.name != name:
            raise StorageError(f"two nodes are called `{name}`")
        nodes[name] = node
    outputs = tuple(_output_from_data(item, nodes, index) for index, item in enumerate(data["outputs"]))
    graph.output(tuple(output.node for output in outputs))
    mesh = data["mesh"]
    return Program(
        cast("torch.fx.GraphModule", StoredModule(graph, constants, patterns)),
        tuple(_input_from_data(item, nodes) for item in data["inputs"]),
        outputs,
        None
        if mesh is None
        else Mesh(tuple(MeshAxis(str(name), int(size)) for name, size in mesh["axes"]), tuple(mesh["ranks"])),
        coordinates={_symbol(s): int(axis) for s, axis in data["coordinates"]},
        groups={name: tuple(int(axis) for axis in axes) for name, axes in data["groups"].items()},
        size_values={_symbol(s): cast("sympy.Expr", expression_from_data(e)) for s, e in data["size_values"]},
        guards=tuple(expression_from_data(guard) for guard in data["guards"]),
        assumptions=tuple(str(text) for text in data["assumptions"]),
        piecewise=bool(data["piecewise"]),
        provenance=Provenance(data["provenance"]),
    )


def _symbol(data: Any) -> sympy.Symbol:
    symbol = expression_from_data(data)
    if not isinstance(symbol, sympy.Symbol):
        raise StorageError(f"{symbol} is no symbol")
    return symbol


def _constant_from_data(data: Any) -> torch.Tensor | None:
    if data is None:
        return None
    dtype = _from_torch(data["dtype"], torch.dtype)
    return torch.tensor(value_from_data(data["content"], {}), dtype=dtype).reshape(data["shape"])


def _from_torch(text: str, kind: type) -> Any:
    value = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(value, kind):
        raise StorageError(f"{text} is no {kind.__name__}")
    return value


def target_from_text(text: str) -> Any:
    """What ``target_to_text`` named."""
    module, colon, name = text.partition(":")
    if colon:
        if module not in _MODULES:
            raise StorageError(f"a call of `{text}`")
        return getattr(importlib.import_module(module), name)
    namespace, operator, overload = text.split(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return UnregisteredOperator(text) if packet is None else getattr(packet, overload)


def value_from_data(data: Any, nodes: Mapping[str, torch.fx.Node]) -> Any:
    """What ``value_to_data`` wrote."""
    if isinstance(data, list):
        return [value_from_data(item, nodes) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    item = cast("dict[str, Any]", data)
    if "tensor" in item:
        shape, stride = (value_from_data(item.get(key, []), nodes) for key in ("shape", "stride"))
        offset = value_from_data(item.get("offset"), nodes)
        return recorded_tensor(shape, _from_torch(item["tensor"], torch.dtype), stride, offset)
    if "number" in item:
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
        return _from_torch(content, (torch.dtype | torch.layout | torch.memory_format))  # type: ignore[arg-type]
    if kind == "device":
        return torch.device(content)
    if kind == "slice":
        return slice(*(value_from_data(v, nodes) for v in content))
    if kind == "object":
        return StoredObject(str(content))
    raise StorageError(f"a value of kind `{kind}`")


def _input_from_data(item: Mapping[str, Any], nodes: Mapping[str, torch.fx.Node]) -> ProgramInput:
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
    """What ``placements_to_data`` wrote."""
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
