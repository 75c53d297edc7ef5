"""Captured programs as JSON: the nodes that the outputs need, with what torch recorded of each.

A call that differs from an earlier one in its operands alone is written as being like that one, and so are all calls
between two ends of parts: layers that repeat are written and read once. Nodes that stand for one group are written as
one node. ``storage.py`` reads what is written here; the checker of certificates writes nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
import torch.fx
from torch.distributed.tensor.placement_types import Partial, Placement

from verifycompile.certificate.storage import StorageError, StoredModule, StoredObject, is_in_table
from verifycompile.lowering.recorded import constant_content
from verifycompile.program import Program, ProgramInput, ProgramOutput, Size
from verifycompile.torch_interface.dtensor.placements import is_known, outer_blocks, reduction_name, sharded_dimension
from verifycompile.torch_interface.operators.calls import is_overload
from verifycompile.torch_interface.operators.written_expressions import expression_to_data
from verifycompile.walks import reached


def program_to_data(
    program: Program, order: Sequence[torch.fx.Node] = (), ends: Collection[int] = ()
) -> dict[str, Any]:
    """The program as JSON has it. Raises StorageError for a program that holds what no text can say.

    ``order``: in which order calls are written; each behind what it takes. ``ends``: after how many of them parts end.
    """
    if program.blockers:
        raise StorageError(f"a program that is blocked: {program.blockers[0].message}")
    same = _same_groups(program)
    dropped = {node.name for node in same}
    return {
        "nodes": _Nodes(program, same).written(order, ends),
        "inputs": [_input_to_data(item) for item in program.inputs],
        "outputs": [_output_to_data(item) for item in program.outputs],
        "mesh": None if program.mesh is None else [[axis.name, axis.size] for axis in program.mesh.axes],
        "coordinates": [[expression_to_data(symbol), axis] for symbol, axis in program.coordinates.items()],
        "groups": {name: list(axes) for name, axes in program.groups.items() if name not in dropped},
        "size_values": [[expression_to_data(s), expression_to_data(e)] for s, e in program.size_values.items()],
        "guards": [expression_to_data(guard) for guard in program.guards],
        "assumptions": list(program.assumptions),
        "piecewise": program.piecewise,
        "by_definition": program.by_definition,
        "provenance": program.provenance.value,
    }


def _needed(program: Program) -> set[torch.fx.Node]:
    outputs = (item.node for item in program.outputs)
    needed = reached(outputs, lambda node: () if is_in_table(program, node) else node.all_input_nodes)
    return {*(item.node for item in program.inputs), *needed}


def _same_groups(program: Program) -> Mapping[torch.fx.Node, torch.fx.Node]:
    """For nodes that stand for a group the earlier node that stands for it: how a program came to it proves nothing."""
    needed, first = _needed(program), dict[Hashable, torch.fx.Node]()
    groups = [n for n in program.graph.graph.nodes if n.name in program.groups and n in needed]
    found = {node: first.setdefault(tuple(program.groups[node.name]), node) for node in groups}
    return {node: earlier for node, earlier in found.items() if node is not earlier}


def in_order(program: Program, order: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """All nodes that are written: what is given, groups, then those of ``order``, each behind what it takes."""
    needed, same = _needed(program), _same_groups(program)
    found: dict[torch.fx.Node, None] = {}
    nodes = [node for node in program.graph.graph.nodes if node in needed]
    given = [node for node in nodes if node.op != "call_function"]
    groups = [node for node in nodes if node.name in program.groups]
    for wanted in (*given, *groups, *order, *nodes):
        stack = [wanted]
        while stack:
            node = stack[-1]
            taken = () if is_in_table(program, node) else node.all_input_nodes
            missing = [n for n in taken if n not in found] if node not in found else []
            if missing:
                stack.extend(reversed(missing))
                continue
            found[stack.pop()] = None
    return [node for node in found if node not in same]


def order_of(module: StoredModule) -> tuple[Sequence[torch.fx.Node], set[int]]:
    """Calls as they were written, and after how many those end that are like several, or that these are like."""
    blocks = [[single.call for single in block.singles] for block in module.blocks]
    order = [call for block in blocks for call in block]
    places = {call: place for place, call in enumerate(order)}
    several = [block for block in module.blocks if len(block.sources) > 1]
    starts = [(places[s[0].call], len(s)) for block in several for s in (block.singles, block.sources)]
    return order, {end for start, count in starts for end in (start, start + count)}


class _Nodes:
    """The nodes of a program while they are written. ``same``: for nodes what is written in their place."""

    def __init__(self, program: Program, same: Mapping[torch.fx.Node, torch.fx.Node]) -> None:
        self._program, self._same = program, same
        self._patterns: dict[Hashable, str] = {}
        """What is said of a call but its operands: the first call of which it was said."""
        self._parts: dict[Hashable, str] = {}

    def written(self, order: Sequence[torch.fx.Node], ends: Collection[int]) -> list[dict[str, Any]]:
        nodes = in_order(self._program, order)
        calls = [node for node in nodes if node.op == "call_function"]
        found = [_node_to_data(node, self._program, ()) for node in nodes if node.op != "call_function"]
        parts = [calls[start:stop] for start, stop in itertools.pairwise(sorted({0, len(calls), *ends}))]
        part_of = {call: number for number, part in enumerate(parts) for call in part}
        taken = {item.node for item in self._program.outputs}
        for call in (call for call in calls if call.name not in self._program.groups):
            taken.update(operand for operand in call.all_input_nodes if part_of.get(operand) != part_of[call])
        for part in parts:
            found += self._part(part, taken)
        return found

    def _part(self, calls: Sequence[torch.fx.Node], taken: Collection[torch.fx.Node]) -> list[dict[str, Any]]:
        """The calls as those of an earlier part, or each by itself. ``taken``: which ones others name."""
        singles = [self._call(call) for call in calls]
        numbers: dict[str, Hashable] = {}
        written: list[Hashable] = []
        outside: list[str] = []
        for place, (call, (_, pattern, operands)) in enumerate(zip(calls, singles, strict=True)):
            for operand in operands:
                if operand not in numbers:
                    numbers[operand] = f"outside {len(outside)}"
                    outside.append(operand)
            written.append((pattern, *(numbers[operand] for operand in operands)))
            numbers[call.name] = place
        first = self._parts.setdefault(tuple(written), calls[0].name)
        if len(calls) == 1 or first == calls[0].name or any(call.name in self._program.groups for call in calls):
            return [data for data, _, _ in singles]
        names = [[place, call.name] for place, call in enumerate(calls) if call in taken]
        return [{"names": names, "count": len(calls), "like": first, "operands": outside}]

    def _call(self, node: torch.fx.Node) -> tuple[dict[str, Any], str, list[str]]:
        """A call as it is written alone, the first one that is like it, and what it takes."""
        taken: dict[torch.fx.Node, None] = {}

        def kept(operand: torch.fx.Node) -> torch.fx.Node:
            taken[(operand := self._same.get(operand, operand))] = None
            return operand

        written = ((), {}) if is_in_table(self._program, node) else (node.args, node.kwargs)
        args = torch.fx.map_arg(written, kept)
        names = [operand.name for operand in taken]
        data = _node_to_data(node, self._program, args)
        if node.name in self._program.groups:
            return data, node.name, names
        first = self._patterns.setdefault(json.dumps(_pattern_of(data, names), sort_keys=True), node.name)
        return data if first == node.name else {"name": node.name, "like": first, "operands": names}, first, names


def _node_to_data(node: torch.fx.Node, program: Program, arguments: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"name": node.name, "op": node.op, "value": value_to_data(node.meta.get("val"))}
    if node.op == "call_function":
        # The axes of a group, or of a coordinate, are in a table: how the program came to it is no part of the proof.
        args, kwargs = ((), {}) if is_in_table(program, node) else arguments
        data |= {"target": target_to_text(node.target), "args": value_to_data(list(args))}
        if kwargs:
            data["kwargs"] = {name: value_to_data(value) for name, value in kwargs.items()}
    elif node.op == "get_attr":
        data["constant"] = _constant_to_data(node, program)
    elif node.op != "placeholder":
        raise StorageError(f"a graph node of kind `{node.op}`")
    return data


def _pattern_of(data: Mapping[str, Any], operands: Sequence[str]) -> Any:
    """What is written of a call but its name, with the numbers of its operands in place of theirs."""
    numbers = {operand: number for number, operand in enumerate(operands)}

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
