"""A captured graph as the text of a plain Python function: one line a node, in float64, with the user's lines above."""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.capture.ranks.merged_collectives import RANK
from verifycompile.diagnostics.source_text import display_path, excerpt
from verifycompile.program import Program, SourceLocation
from verifycompile.torch_interface.operators.calls import by_name
from verifycompile.torch_interface.operators.elements import constant_value
from verifycompile.torch_interface.operators.evaluation import operator_name, symbolic_expression
from verifycompile.torch_interface.source_lines.model_lines import helper_location_of, model_location_of
from verifycompile.witness import attention, collectives, operators
from verifycompile.witness.interpreter import ancestors
from verifycompile.witness.written_kernels import WRITTEN

_INDENT = "    "
_RESERVED = frozenset({"aten", "attention_of", "decomposed", "math", "me", "prims", "torch", "unset"}) | {
    function.__name__ for function in WRITTEN.values()
}
_INFIX: Mapping[object, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.truediv: "/",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_COORDINATE = "device_mesh._runtime_compute_coordinate_on_dim.default"
_GROUP = "_dtensor.mesh_get_process_group.default"
_SOFTMAX = {"aten._softmax.default": "softmax", "aten._log_softmax.default": "log_softmax"}


class NoScriptError(Exception):
    """A graph cannot be written as a function that needs torch alone. The message says why."""


def identifier(name: str, taken: Iterable[str] = ()) -> str:
    """A Python name close to ``name`` that is not ``taken``."""
    found = re.sub(r"\W", "_", name)
    if not found or found[0].isdigit() or keyword.iskeyword(found) or found in _RESERVED:
        found = f"_{found}" if not found or found[0].isdigit() else f"{found}_"
    base, number, used = found, 1, set(taken)
    while found in used:
        number += 1
        found = f"{base}_{number}"
    return found


class GraphSource:
    """The function that computes ``output``. ``parameters``: placeholder -> the name or number that stands for it."""

    def __init__(self, program: Program, output: torch.fx.Node, parameters: Mapping[torch.fx.Node, str]) -> None:
        self._program = program
        self._output = output
        self._names = dict(parameters)
        self._needed = ancestors([output])
        self._place: object = None

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        """Those that the outputs depend on."""
        nodes = self._program.graph.graph.nodes
        return [node for node in nodes if node.op == "placeholder" and node in self._needed]

    def body(self) -> list[str]:
        """The indented lines of the function, ``return`` included. Raises :class:`NoScriptError`."""
        lines: list[str] = []
        for node in self._program.graph.graph.nodes:
            if node not in self._needed or node.op == "placeholder":
                continue
            text = self._node(node)
            if text is None:
                continue
            lines += self._comment(node)
            self._names[node] = identifier(node.name, self._names.values())
            lines.append(f"{_INDENT}{self._names[node]} = {text}")
        lines.append(f"{_INDENT}return {self._names[self._output]}")
        return lines

    def _comment(self, node: torch.fx.Node) -> list[str]:
        """The user's lines, where they are others than those of the line before."""
        found = [place for place in (model_location_of(node), helper_location_of(node)) if place is not None]
        rank = node.meta.get(RANK)
        key = (rank, *((place.file, place.line) for place in found))
        if not found or key == self._place:
            return []
        self._place = key
        runs = "" if rank is None else f"rank {rank}, "
        return [f"{_INDENT}# {runs}{_source_line(place)}" for place in found]

    # -- nodes

    def _node(self, node: torch.fx.Node) -> str | None:
        """The expression of a node, None for one that has no value in a script."""
        if node.op == "get_attr":
            return self._constant(node)
        if node.op != "call_function":
            raise NoScriptError(f"the graph has the node `{node.format_node()}`")
        name = operator_name(node.target)
        if name is None:
            return self._python_call(node)
        if name == _GROUP:
            return None
        if name == _COORDINATE:
            return self._coordinate(node)
        if collectives.is_wait(name):
            return self._value(node.args[0])
        if collectives.is_collective(name):
            return self._collective(node, name)
        return self._operator(node, name)

    def _constant(self, node: torch.fx.Node) -> str | None:
        value: object = operator.attrgetter(str(node.target))(self._program.graph)
        if not isinstance(value, torch.Tensor):
            return None
        known = constant_value(value)
        if known is None:
            raise NoScriptError(f"the constant `{node.target}` has no values")
        return literal(known)

    def _coordinate(self, node: torch.fx.Node) -> str:
        symbol: Any = symbolic_expression(node.meta.get("val"))
        axis = self._program.coordinates.get(symbol)
        if axis is None or self._program.mesh is None:
            raise NoScriptError(f"`{node.name}` is the coordinate of an unknown mesh axis")
        return f'me.coordinate("{self._program.mesh.axes[axis].name}")'

    def _python_call(self, node: torch.fx.Node) -> str:
        arguments = [self._value(argument) for argument in node.args]
        if node.target is operator.getitem:
            return f"{arguments[0]}[{arguments[1]}]"
        if node.target in _INFIX and len(arguments) == 2:
            return f"{arguments[0]} {_INFIX[node.target]} {arguments[1]}"
        module, name = getattr(node.target, "__module__", ""), str(getattr(node.target, "__name__", ""))
        arguments += [f"{key}={self._value(value)}" for key, value in node.kwargs.items()]
        if module in ("_operator", "math"):
            return f"{module.removeprefix('_')}.{name}({', '.join(arguments)})"
        if name.startswith("sym_"):
            return f"torch.{name}({', '.join(arguments)})"
        raise NoScriptError(f"the function `{name}` is not torch's")

    def _operator(self, node: torch.fx.Node, name: str) -> str:
        if not name.startswith(("aten.", "prims.")):
            raise NoScriptError(f"the operator `{name}` is not torch's")
        named = by_name(node.target, node.args, node.kwargs)
        if name in ("aten.view.default", "aten._unsafe_view.default"):
            return f"{self._value(named['self'])}.reshape({self._value(named['size'])})"
        if name in _SOFTMAX:
            return f"{self._value(named['self'])}.{_SOFTMAX[name]}({self._value(named['dim'])})"
        if name == "aten.native_dropout.default":
            operand = self._value(named["input"])
            return f"({operand}.clone(), torch.ones({operand}.shape, dtype=torch.bool))"
        if attention.is_attention(name) or name in WRITTEN:
            pairs = ", ".join(f'"{key}": {self._value(value)}' for key, value in named.items())
            if name in WRITTEN:
                return f"{WRITTEN[name].__name__}({{{pairs}}})"
            return f'attention_of("{name}", {{{pairs}}})'
        arguments = [self._value(argument) for argument in node.args]
        ignored = ("pin_memory", "non_blocking")
        arguments += [f"{key}={self._value(value)}" for key, value in node.kwargs.items() if key not in ignored]
        if operators.is_uninitialised(name):
            return f"unset({name}({', '.join(arguments)}))"
        if operators.is_decomposed(name):
            return f"decomposed({', '.join([name, *arguments])})"
        return f"{name}({', '.join(arguments)})"

    def _collective(self, node: torch.fx.Node, name: str) -> str:
        named = by_name(node.target, node.args, node.kwargs)
        call = name.split(".")[1].removesuffix("_")
        several = call.endswith("_coalesced")
        call = call.removesuffix("_coalesced")
        keys = _COLLECTIVES.get(call)
        if keys is None:
            raise NoScriptError(f"the collective `{name}`")
        method, further = keys
        axes = self._axes(named.get("group_name"))
        rest = [self._value(str(named[key]).lower() if key == "reduce_op" else named[key]) for key in further] + axes
        if several:
            operand = "value"
            return f"[me.{method}({', '.join([operand, *rest])}) for value in {self._value(named['inputs'])}]"
        return f"me.{method}({', '.join([self._value(named['input']), *rest])})"

    def _axes(self, group: object) -> list[str]:
        key = group.name if isinstance(group, torch.fx.Node) else str(group)
        mesh, axes = self._program.mesh, self._program.groups.get(key)
        if axes is None or mesh is None:
            raise NoScriptError(f"the process group `{key}` spans no known mesh axes")
        return [f'"{mesh.axes[axis].name}"' for axis in axes]

    # -- values

    def _value(self, value: object) -> str:
        if isinstance(value, torch.fx.Node):
            return self._names[value]
        if isinstance(value, (list, tuple)):
            items = [self._value(item) for item in value]
            if isinstance(value, tuple):
                return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
            return f"[{', '.join(items)}]"
        if isinstance(value, slice):
            return f"slice({', '.join(self._value(part) for part in (value.start, value.stop, value.step))})"
        return _plain(value)


_COLLECTIVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "all_reduce": ("all_reduce", ("reduce_op",)),
    "all_gather_into_tensor": ("all_gather", ()),
    "reduce_scatter_tensor": ("reduce_scatter", ("reduce_op",)),
    "all_to_all_single": ("all_to_all", ("output_split_sizes", "input_split_sizes")),
    "broadcast": ("broadcast", ("src",)),
    "shard_dim_alltoall": ("shard_dim_alltoall", ("gather_dim", "shard_dim")),
}
"""Collective -> the method of a rank in the script, and the arguments between its operand and its group."""


def _source_line(place: SourceLocation) -> str:
    line = excerpt(place)
    text = "" if line is None else f": {line.text.strip()}"
    return f"{display_path(place.file)}:{place.line}{text}"


def _plain(value: object) -> str:
    """A literal, with every floating dtype widened as the comparison does and every device the CPU."""
    if isinstance(value, torch.dtype):
        return str(operators.precise(value))
    if isinstance(value, torch.device):
        return '"cpu"'
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.memory_format, torch.layout)):
        return repr(value)
    raise NoScriptError(f"an argument is {value!r}")


def literal(tensor: torch.Tensor) -> str:
    """An expression that makes ``tensor``: zeros, or as many nested lists as it takes."""
    value = operators.precise(tensor)
    assert isinstance(value, torch.Tensor)
    shape, dtype = list(value.shape), str(value.dtype)
    if value.numel() and bool((value == value.flatten()[0]).all()):
        element = value.flatten()[0].item()
        made = "zeros" if element == 0 else "ones" if element == 1 else ""
        return (
            f"torch.{made}({shape}, dtype={dtype})"
            if made
            else f"torch.full({shape}, {_plain(element)}, dtype={dtype})"
        )
    values = str(_spelled(value.tolist())).replace("'", "")
    return f"torch.tensor({values}, dtype={dtype}).reshape({shape})"


def _spelled(value: object) -> object:
    return [_spelled(item) for item in value] if isinstance(value, list) else _plain(value)
