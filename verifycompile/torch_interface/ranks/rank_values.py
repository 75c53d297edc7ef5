"""Rank-dependent values in a captured graph: coordinate reads, process groups, and collectives."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import sympy
import torch
import torch.distributed._ops.device_mesh  # pyright: ignore[reportUnusedImport]  # registers the coordinate operator
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from verifycompile.program import Mesh
from verifycompile.torch_interface.operators.shapes import symbol_of
from verifycompile.torch_interface.ranks.mesh import is_process_group, real_object

COORDINATE = torch.ops.device_mesh._runtime_compute_coordinate_on_dim.default
COLLECTIVE_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
RANK_NAMESPACES = (*COLLECTIVE_NAMESPACES, "_dtensor", "device_mesh")


@dataclasses.dataclass(frozen=True)
class CoordinateRead:
    """A node that yields this rank's coordinate: its symbol, the rank map it reads, the dimension of the submesh.

    ``rank_map`` is ``i32[number of submeshes, *submesh shape]``, None where it is no constant of the graph.
    """

    node: torch.fx.Node
    symbol: sympy.Symbol | None
    rank_map: torch.Tensor | None
    dimension: int


@dataclasses.dataclass(frozen=True)
class GroupUse:
    """A process group that the graph mentions. ``key``: name of its node, or the group's own name.

    ``mesh`` and ``dimension`` are given where the graph takes the group from a mesh, else ``group`` is.
    """

    key: str
    node: torch.fx.Node
    group: Any
    mesh: DeviceMesh | None = None
    dimension: int = 0


def namespace(node: torch.fx.Node) -> str:
    """Operator library of a node, "" for what is no operator of one."""
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return str(node.target._qualified_op_name).partition("::")[0]
    return str(getattr(node.target, "namespace", ""))


def coordinate_reads(graph: torch.fx.GraphModule) -> Iterator[CoordinateRead]:
    """All coordinate reads of a rank-agnostic graph."""
    for node in graph.graph.nodes:
        if namespace(node) != "device_mesh" or "_runtime_compute_coordinate_on_dim" not in str(node.target):
            continue
        with _disable_current_modes():
            rank_map = _constant(graph, node.args[0])
        yield CoordinateRead(node, symbol_of(node.meta.get("val")), rank_map, int(node.args[1]))


def _constant(graph: torch.fx.GraphModule, value: Any) -> torch.Tensor | None:
    if not isinstance(value, torch.fx.Node):
        return None
    if value.op == "get_attr":
        found = getattr(graph, str(value.target), None)
        return found if isinstance(found, torch.Tensor) else None
    if value.op != "call_function" or namespace(value) != "aten" or value.kwargs:
        return None
    base = _constant(graph, value.args[0])
    return None if base is None else value.target(base, *value.args[1:])  # type: ignore[operator]  # a call of an operator


def group_uses(graph: torch.fx.GraphModule) -> Iterator[GroupUse]:
    """All process groups of a graph: those taken from meshes, passed in, held as objects, or named by a string."""
    for node in graph.graph.nodes:
        if node.op == "placeholder" and is_process_group(node.meta.get("val")):
            yield GroupUse(node.name, node, real_object(node.meta["val"]))
        elif node.op == "get_attr" and is_process_group(getattr(graph, str(node.target), None)):
            yield GroupUse(node.name, node, real_object(getattr(graph, str(node.target))))
        elif namespace(node) == "_dtensor" and "mesh_get_process_group" in str(node.target):
            yield GroupUse(node.name, node, node.meta.get("val"), _mesh_of(graph, node.args[0]), int(node.args[1]))
        elif namespace(node) in COLLECTIVE_NAMESPACES:
            for name in _group_names(node):
                yield GroupUse(name, node, name)


def _group_names(node: torch.fx.Node) -> Iterator[str]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.name not in ("group_name", "group"):
            continue
        value = node.kwargs.get(argument.name, node.args[position] if position < len(node.args) else None)
        if isinstance(value, str):
            yield value


def _mesh_of(graph: torch.fx.GraphModule, value: Any) -> DeviceMesh | None:
    if not isinstance(value, torch.fx.Node):
        return None
    held = getattr(graph, str(value.target), None) if value.op == "get_attr" else value.meta.get("val")
    mesh = real_object(held)
    return mesh if isinstance(mesh, DeviceMesh) else None


def has_rank_operators(graph: torch.fx.GraphModule) -> bool:
    """True where a graph (Dynamo's or ATen's) or a graph inside it holds a collective or reads a mesh."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule) and any(_is_rank_operator(node) for node in module.graph.nodes):
            return True
    return False


def _is_rank_operator(node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    if namespace(node) in RANK_NAMESPACES:
        return True
    module = str(getattr(node.target, "__module__", "") or "")
    return module.startswith("torch.distributed")


def has_messages(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph sends or receives from one rank to another."""
    names = ("isend", "irecv", "batch_p2p_ops")
    return any(
        namespace(node) == "_c10d_functional" and str(node.target).split(".")[1] in names for node in graph.graph.nodes
    )


def exchanges_parts(node: torch.fx.Node) -> bool:
    """Whether a node exchanges parts of given sizes between the ranks."""
    return namespace(node) == "_c10d_functional" and str(node.target).split(".")[1] == "all_to_all_single"


def functional_collectives() -> Any:
    """The namespace of torch's functional collectives."""
    importlib.import_module("torch.distributed._functional_collectives")  # registers the operators

    return torch.ops._c10d_functional


def new_coordinate(graph: torch.fx.GraphModule, mesh: Mesh, axis: int) -> torch.fx.Node:
    """A node in front of all calls of ``graph`` that reads this rank's coordinate on ``axis`` of ``mesh``."""
    rank_map = torch.tensor(mesh.ranks, dtype=torch.int32).reshape(1, *mesh.shape)
    name = f"_rank_map_{axis}"
    graph.register_buffer(name, rank_map)
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    modes = [value.fake_mode for value in values if isinstance(value, FakeTensor)]
    shape_env = next((mode.shape_env for mode in modes if mode.shape_env is not None), None) or ShapeEnv()
    first = next(node for node in graph.graph.nodes if node.op != "placeholder")
    with graph.graph.inserting_before(first):
        held = graph.graph.get_attr(name)
        held.meta["val"] = rank_map
        node = graph.graph.call_function(COORDINATE, (held, axis))
    taken = {str(symbol) for other in graph.graph.nodes for symbol in _symbols(other.meta.get("val"))}
    # The environment is that of the compilation in progress: what is left pending there fails the inner compiler.
    with shape_env.ignore_fresh_unbacked_symbols():
        node.meta["val"] = shape_env.create_unbacked_symint()
        while str(node.meta["val"].node.expr) in taken:
            node.meta["val"] = shape_env.create_unbacked_symint()
    return node


def _symbols(value: object) -> set[sympy.Basic]:
    values = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return {symbol for size in values if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}
