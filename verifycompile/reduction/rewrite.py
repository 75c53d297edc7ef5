"""A program with other sizes: its graph copied node by node under the same names, arguments and shapes rewritten."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

from verifycompile.program import Program, ProgramInput, ProgramOutput, Size
from verifycompile.reduction.constants import Constants
from verifycompile.reduction.operators import SIZES
from verifycompile.reduction.recorded import dimensions_of, known_sizes, named_arguments, tensors_of
from verifycompile.reduction.solve import Sizes
from verifycompile.torch_interface.dynamo.graph_modules import module_of
from verifycompile.torch_interface.operators.evaluation import operator_name
from verifycompile.torch_interface.operators.resized import WithoutMemory, resized_number, resized_tensor
from verifycompile.torch_interface.operators.schema import names_of

_UNCHECKED = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "_grouped_mm")
"""Operators that ask for sizes of a kernel's own, or give results of such sizes that only their backward pass reads."""

_CUTS = frozenset({"slice", "slice_copy", "slice_scatter", "slice_backward", "narrow"})
_POSITIONED = _CUTS | {"select", "select_backward", "select_scatter", "repeat", "arange"}
"""Operators with arguments that are positions within a dimension, or follow from its size."""


class UnreducibleError(Exception):
    """``node`` does not take the sizes that were found for it."""

    def __init__(self, node: torch.fx.Node, message: str) -> None:
        super().__init__(message)
        self.node, self.message = node, message


def rewrite(
    program: Program,
    spec: Program,
    sizes: Sizes,
    constants: Constants,
    *,
    without_memory: WithoutMemory,
    checked: Program | None = None,
) -> Program:
    """``program`` at ``sizes``. Raises ``UnreducibleError`` where an operator does not take them.

    ``spec``: the one of whose inputs and outputs those of ``program`` are parts. ``checked``: ``program`` at these
    sizes with other constants, of which the shapes are known to be right. ``without_memory``: calls the operators.
    """
    return _Copy(program, spec, sizes, constants, without_memory=without_memory, checked=checked).program()


class _Copy:
    def __init__(
        self,
        program: Program,
        spec: Program,
        sizes: Sizes,
        constants: Constants,
        *,
        without_memory: WithoutMemory,
        checked: Program | None,
    ) -> None:
        nodes = () if checked is None else checked.graph.graph.nodes
        self._known = {node.name: node.meta["val"] for node in nodes if _is_known(node)}
        self._program, self._sizes, self._constants = program, sizes, constants
        self._called = without_memory
        self._wholes = {entry.name: entry.node for entry in (*spec.inputs, *spec.outputs)}
        self._new: dict[torch.fx.Node, torch.fx.Node] = {}
        self._concrete: set[torch.fx.Node] = set()

    def program(self) -> Program:
        source = self._program.graph
        graph = torch.fx.Graph()
        for node in source.graph.nodes:
            args, kwargs = self._arguments(node)
            copied = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
            copied.name = node.name
            copied.meta = dict(node.meta)
            self._new[node] = copied
            if "val" in node.meta:
                copied.meta["val"] = self._value(node, copied)
            if _is_concrete(copied.meta.get("val")):
                self._concrete.add(copied)
        return dataclasses.replace(
            self._program,
            graph=module_of(graph, source),
            inputs=tuple(
                dataclasses.replace(
                    entry, node=self._new[entry.node], global_shape=self._shape(entry, entry.global_shape)
                )
                for entry in self._program.inputs
            ),
            outputs=tuple(
                dataclasses.replace(
                    output,
                    node=self._new[output.node],
                    global_shape=self._shape(output, output.global_shape),
                    global_stride=self._strides(output),
                )
                for output in self._program.outputs
            ),
            blockers=tuple(
                dataclasses.replace(blocker, node=None if blocker.node is None else self._new[blocker.node])
                for blocker in self._program.blockers
            ),
            ranks=(),
            each_rank=None,
            doubt=None,
            own=None,
        )

    def _shape(self, entry: ProgramInput | ProgramOutput, shape: Sequence[Size] | None) -> tuple[Size, ...] | None:
        """The shape of a whole tensor."""
        if shape is None:
            return None
        node = whole_node(entry, shape, self._wholes)
        return tuple(self._sizes.size(size, node) if isinstance(size, int) else size for size in shape)

    def _strides(self, output: ProgramOutput) -> tuple[Size, ...] | None:
        shape, strides = output.global_shape, output.global_stride
        if shape is None or strides is None or not all(isinstance(size, int) for size in (*shape, *strides)):
            return strides
        new = self._shape(output, shape) or ()
        recorded = torch.empty_strided(tuple(shape), tuple(strides), device="meta")  # pyright: ignore[reportArgumentType]  # reduced sizes are whole numbers
        return tuple(resized_tensor(recorded, new).stride())

    # -- arguments

    def _arguments(self, node: torch.fx.Node) -> tuple[Any, Any]:
        args, kwargs = map_arg((node.args, node.kwargs), self._new.__getitem__)
        name = operator_name(node.target) if node.op == "call_function" else None
        if name is None:
            if getattr(node.target, "__module__", "") == "_operator" and node.target is not operator.getitem:
                args = tuple(
                    self._constants.value(argument) if type(argument) is int else argument for argument in args
                )
            return args, kwargs
        positions = self._positions(node, name.split(".")[1])
        names = names_of(node.target)
        args = tuple(self._argument(item, names[index], positions, node) for index, item in enumerate(args))
        return args, {key: self._argument(argument, key, positions, node) for key, argument in kwargs.items()}

    def _argument(self, argument: Any, name: str, positions: Mapping[str, Any], node: torch.fx.Node) -> Any:
        if name in positions:
            return positions[name]
        if name in SIZES:
            return self._resized(argument, node)
        return self._constants.argument(argument, name, node)

    def _resized(self, argument: Any, node: torch.fx.Node) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._resized(item, node) for item in argument]
        return self._sizes.size(argument, node) if type(argument) is int else argument

    def _positions(self, node: torch.fx.Node, name: str) -> dict[str, Any]:
        """New values of arguments that are positions within a dimension."""
        if name not in _POSITIONED:
            return {}
        arguments = named_arguments(node)
        if name in _CUTS:
            whole = self._whole(node, arguments)
            found = {
                key: self._position(arguments[key], whole, node)
                for key in ("start", "end")
                if type(arguments.get(key)) is int and arguments.get("step", 1) == 1
            }
            return {key: value for key, value in found.items() if _is_given(node, key)}
        if name == "repeat":
            return {"repeats": self._repeats(node, arguments)}
        if name == "arange":
            return self._range(node, arguments)
        if type(arguments.get("index")) is not int:
            return {}
        return {"index": self._position(arguments["index"], self._whole(node, arguments), node)}

    def _whole(self, node: torch.fx.Node, arguments: Mapping[str, Any]) -> int:
        operand = arguments.get("self")
        shape = (
            operand.meta["val"].shape
            if isinstance(operand, torch.fx.Node) and "input_sizes" not in arguments
            else node.meta["val"].shape
        )
        size = shape[arguments.get("dim", 0) % len(shape)]
        return size if isinstance(size, int) else 0

    def _position(self, position: int, whole: int, node: torch.fx.Node) -> int:
        if whole == 0 or position == 0:
            return position
        if position < 0:
            size = self._sizes.size(whole, node)
            return -(size - self._sizes.position(max(position + whole, 0), whole, node)) or position
        return self._sizes.position(position, whole, node) if position <= whole else position

    def _repeats(self, node: torch.fx.Node, arguments: Mapping[str, Any]) -> list[Any]:
        shape = arguments["self"].meta["val"].shape
        repeats = list(arguments["repeats"])
        padded = (1,) * (len(repeats) - len(shape)) + tuple(shape)
        return [
            self._sizes.size(count, node) if size == 1 and type(count) is int else count
            for size, count in zip(padded, repeats, strict=True)
        ]

    def _range(self, node: torch.fx.Node, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A range has as many elements as its shape says, wherever it starts."""
        length = node.meta["val"].shape[0]
        start, step = arguments.get("start", 0), arguments.get("step", 1)
        if type(length) is not int or type(start) is not int or type(step) is not int:
            return {}
        first = start if start == 0 else self._constants.value(start)
        last = first + step * self._sizes.size(length, node)
        found = {"start": first, "end": last}
        return {key: value for key, value in found.items() if _is_given(node, key)}

    # -- recorded values

    def _value(self, node: torch.fx.Node, copied: torch.fx.Node) -> Any:
        if node.name in self._known:
            return self._known[node.name]
        recorded = node.meta["val"]
        is_known = _is_concrete(recorded) and self._concrete.issuperset(copied.all_input_nodes)
        if not is_known or not _is_checked(node):
            return self._number(node, copied, self._expected(node, recorded))
        try:
            found = self._called(copied.target, copied.args, copied.kwargs)
        except Exception as error:
            raise UnreducibleError(node, f"{type(error).__name__}: {error}") from error
        expected = [self._shape_at(node, item) for item in tensors_of(recorded)]
        if _shapes(found) != expected:
            raise UnreducibleError(node, f"{_shapes(found)} instead of {expected}")
        return found if expected else recorded

    def _expected(self, node: torch.fx.Node, recorded: Any) -> Any:
        if isinstance(recorded, (list, tuple)):
            items = [self._expected(node, item) for item in recorded]
            return tuple(items) if isinstance(recorded, tuple) else items
        return (
            resized_tensor(recorded, self._shape_at(node, recorded)) if isinstance(recorded, torch.Tensor) else recorded
        )

    def _shape_at(self, node: torch.fx.Node, recorded: torch.Tensor) -> tuple[Any, ...]:
        """What the sizes of a tensor at a node become."""
        return tuple(
            self._sizes.size(size, node) if known is not None else resized_number(size, self._sizes.size)
            for size, known in zip(recorded.shape, known_sizes(recorded), strict=True)
        )

    def _number(self, node: torch.fx.Node, copied: torch.fx.Node, expected: Any) -> Any:
        """A symbolic number is computed again, because its constants are arguments that were rewritten."""
        if not isinstance(node.meta["val"], torch.SymInt) or getattr(node.target, "__module__", "") != "_operator":
            return resized_number(expected, self._sizes.size) if isinstance(expected, torch.SymInt) else expected
        args = map_arg(copied.args, lambda operand: operand.meta["val"])
        if not callable(node.target):
            return expected
        return node.target(*args)


def whole_node(
    entry: ProgramInput | ProgramOutput, shape: Sequence[Size | None], wholes: Mapping[str, torch.fx.Node]
) -> torch.fx.Node:
    """The node at which the sizes of the whole tensor are looked up: the spec's, where it has such a tensor."""
    node = wholes.get(entry.name)
    known = node is not None and tuple(shape) in [tuple(found) for found in dimensions_of(node)]
    return node if node is not None and known else entry.node


def _is_known(node: torch.fx.Node) -> bool:
    """Whether what was recorded of a node does not depend on the constants of the program."""
    recorded = node.meta.get("val")
    items: Sequence[Any] = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
    return all(isinstance(item, torch.Tensor) for item in items)


def _is_given(node: torch.fx.Node, name: str) -> bool:
    names = names_of(node.target)
    return name in node.kwargs or (name in names and names.index(name) < len(node.args))


def _is_checked(node: torch.fx.Node) -> bool:
    """Whether what an operator gives for its operands' new sizes is known from torch."""
    name = operator_name(node.target) or "" if node.op == "call_function" else ""
    return name.startswith(("aten.", "prims.")) and not name.split(".")[1].startswith(_UNCHECKED)


def _is_concrete(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return None not in known_sizes(value) and not any(isinstance(stride, torch.SymInt) for stride in value.stride())
    if isinstance(value, (list, tuple)):
        return all(map(_is_concrete, value))
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _shapes(value: Any) -> list[tuple[int, ...]]:
    values: Sequence[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return [tuple(item.shape) for item in values if isinstance(item, torch.Tensor)]
