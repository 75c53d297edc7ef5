"""What spec and implementation have in common: a traced frame exported to a joint graph, its outputs named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from verifycompile.capture.names import InputName, name_inputs
from verifycompile.errors import UsageError
from verifycompile.program import Blocker, OutputKind, ProgramOutput, Role
from verifycompile.torch_interface.communication.under_way import is_under_way
from verifycompile.torch_interface.dynamo.aot import Flat, JointGraph, Origin, Part, export_joint
from verifycompile.torch_interface.dynamo.frames import TracedFrame, said_of_data
from verifycompile.torch_interface.dynamo.gradient_stops import without_regions
from verifycompile.torch_interface.dynamo.regions import with_regions_inlined
from verifycompile.torch_interface.dynamo.sources import source_of
from verifycompile.torch_interface.training_step.returned_values import Place


@dataclasses.dataclass(frozen=True)
class Export:
    """A traced frame, of which the graph is to be read only, and its joint graph.

    ``names``: one per Dynamo graph input. ``results``: for each result of the Dynamo graph the names of the user's
    outputs that it is (``output.N``, N counts the tensors of the flattened return value).
    ``passed_through``: ``output.N`` -> input name, for outputs that are an input itself.
    ``places``: where the user finds an output -> its name.
    """

    traced: TracedFrame
    joint: JointGraph
    names: tuple[InputName, ...]
    results: tuple[tuple[str, ...], ...]
    passed_through: dict[str, str]
    places: Mapping[Place, str] = dataclasses.field(default_factory=dict[Place, str])


def export(
    traced: TracedFrame, known_names: Mapping[int, InputName] | None = None, *, for_all_ranks: bool = True
) -> Export:
    """Export ``traced`` (inside its backend call) and name its boundary.

    ``known_names``: identity of a real input -> its name, where the caller made the input itself.
    ``for_all_ranks``: see ``export_joint``.
    Raises ``UsageError`` VC303 where torch itself fails, whatever it raises.
    """
    placeholders = traced.graph.graph.find_nodes(op="placeholder")
    sources = [source_of(placeholder) for placeholder in placeholders]
    names = list(name_inputs(sources, traced.example_inputs, traced.frame))
    for position, value in enumerate(traced.example_inputs):
        if known_names is not None and id(value) in known_names:
            names[position] = known_names[id(value)]
    results, passed_through = _name_results(traced, placeholders, names)
    try:
        joint = export_joint(without_regions(traced.graph), traced.example_inputs, for_all_ranks=for_all_ranks)
    except Exception as failure:
        text = "torch cannot trace the model's forward and backward on these inputs."
        if any(isinstance(value, torch.SymInt) for value in traced.example_inputs):
            text = (
                "torch cannot trace the model's forward and backward where it leaves sizes of the inputs open, as it "
                "does once a size has changed: write `torch.compile(..., dynamic=False)`, and each size is compiled by "
                "itself."
            )
        what = said_of_data(failure) or f"{type(failure).__name__}: {failure}"
        raise UsageError("VC303", f"{text}\n{what}") from failure
    places = _places(traced, results)
    read = dataclasses.replace(traced, graph=with_regions_inlined(traced.graph))
    return Export(read, joint, tuple(names), results, passed_through, places)


def _name_results(
    traced: TracedFrame, placeholders: list[torch.fx.Node], names: list[InputName]
) -> tuple[tuple[tuple[str, ...], ...], dict[str, str]]:
    output = next(iter(traced.graph.graph.find_nodes(op="output")))
    returned_by_graph: list[Any] = list(output.args[0])
    if traced.returned is None:
        return tuple((f"output.{index}",) for index in range(len(returned_by_graph))), {}
    results: list[list[str]] = [[] for _ in returned_by_graph]
    passed_through: dict[str, str] = {}
    renamed: list[str] = []
    for number, node in enumerate(traced.returned):
        name = f"output.{number}"
        if node in returned_by_graph:
            results[returned_by_graph.index(node)].append(name)
        elif node.op == "placeholder":
            position = next((i for i, item in enumerate(placeholders) if item.name == node.name), None)
            passed_through[name] = names[position].name if position is not None else node.name
        else:
            renamed.append(name)  # a node of another name in the graph, behind a checkpoint for instance
    if len(renamed) > sum(not result for result in results):
        raise UsageError("VC305", f"`{renamed[0]}` is returned by the frame, and not by its graph.")
    number = len(traced.returned)
    for result in results:
        if not result:
            # A value that leaves the frame by a side effect (`self.cache = y`), after what the frame returns.
            result.append(f"output.{number}")
            number += 1
    return tuple(tuple(result) for result in results), passed_through


def _places(traced: TracedFrame, results: tuple[tuple[str, ...], ...]) -> dict[Place, str]:
    output = next(iter(traced.graph.graph.find_nodes(op="output")))
    returned_by_graph: list[Any] = list(output.args[0])
    of_result = {
        item.name: names[0]
        for item, names in zip(returned_by_graph, results, strict=True)
        if isinstance(item, torch.fx.Node)
    }
    left = traced.left_behind
    tensors = [(place, leaf) for place, leaf in left.returned.items() if isinstance(leaf, torch.fx.Node)]
    places: dict[Place, str] = {}
    if traced.returned is not None and len(traced.returned) != len(tensors):
        tensors = []
    for number, (place, leaf) in enumerate(tensors):
        if traced.returned is not None:
            places[place] = f"output.{number}"
        elif leaf.name in of_result:
            places[place] = of_result[leaf.name]
    for place, leaf in left.changed.items():
        if isinstance(leaf, torch.fx.Node) and leaf.name in of_result:
            places[place] = of_result[leaf.name]
    return places


def boundary_blockers(exported: Export) -> tuple[Blocker, ...]:
    """Inputs and outputs of the joint graph that have no counterpart in the user's program."""
    blockers: list[Blocker] = []
    for flat in (*exported.joint.inputs, *exported.joint.outputs):
        if flat.node is None or flat.part in (Part.MESH, Part.SIZE, Part.EFFECT):
            continue
        if flat.origin is Origin.OTHER or flat.part is Part.OTHER:
            blockers.append(
                Blocker(flat.node, "VC206", f"the graph passes `{flat.text}`, which the proof cannot name.")
            )
    for flat in exported.joint.outputs:
        if flat.origin is Origin.MUTATION and is_under_way(exported.traced.example_inputs[flat.index]):
            text = _CHANGED_UNDER_WAY.format(exported.names[flat.index].name)
            blockers.append(Blocker(flat.node, "VC206", text))
    return tuple(blockers)


_CHANGED_UNDER_WAY = (
    "`{0}` is the result of a collective that is still under way, and is changed in place: change a copy of it, "
    "`{0}.clone()`."
)


def output_names(exported: Export, flat: Flat) -> tuple[tuple[OutputKind, str], ...]:
    """Kind and names of a returned value; none for meshes, sizes and what ``boundary_blockers`` reports."""
    if flat.node is None or flat.part not in (Part.WHOLE, Part.LOCAL):
        return ()
    if flat.origin is Origin.RESULT:
        return tuple((OutputKind.VALUE, name) for name in exported.results[flat.index])
    if flat.origin is Origin.GRADIENT:
        return ((OutputKind.GRADIENT, f"grad.{exported.names[flat.index].name}"),)
    if flat.origin is Origin.MUTATION:
        return ((OutputKind.MUTATION, f"mutation.{exported.names[flat.index].name}"),)
    return ()


def passed_through_outputs(exported: Export) -> tuple[ProgramOutput, ...]:
    """Outputs that are an input itself, as it is in the end, where the joint graph has it; their index is -1."""
    nodes = {
        exported.names[flat.index].name: flat.node
        for origin, flats in ((Origin.ARGUMENT, exported.joint.inputs), (Origin.MUTATION, exported.joint.outputs))
        for flat in flats
        if flat.origin is origin and flat.part in (Part.WHOLE, Part.LOCAL) and flat.node is not None
    }
    requires_grad = {
        exported.names[position].name: isinstance(value, torch.Tensor) and value.requires_grad
        for position, value in enumerate(exported.traced.example_inputs)
    }
    return tuple(
        ProgramOutput(nodes[source], OutputKind.VALUE, name, -1, requires_grad=requires_grad[source])
        for name, source in exported.passed_through.items()
        if source in nodes
    )


def role_of(exported: Export, flat: Flat) -> Role:
    """Role of a placeholder."""
    if flat.part is Part.SIZE:
        return Role.SIZE
    if flat.part in (Part.MESH, Part.EFFECT):
        return Role.OPAQUE
    if flat.origin in (Origin.TANGENT, Origin.MUTATION):
        return Role.TANGENT
    return exported.names[flat.index].role if flat.origin is Origin.ARGUMENT else Role.INPUT


def tangent_name(exported: Export, flat: Flat) -> str:
    """The output of which an input is the cotangent."""
    if flat.origin is Origin.MUTATION:
        return f"mutation.{exported.names[flat.index].name}"
    return exported.results[flat.index][0]


def values_of(exported: Export, role: Role) -> dict[str, Any]:
    """By name the values of the parameters, or of the buffers, that enter the graph."""
    return {
        exported.names[flat.index].name: exported.traced.example_inputs[flat.index]
        for flat in exported.joint.inputs
        if flat.origin is Origin.ARGUMENT and flat.part in (Part.WHOLE, Part.LOCAL) and role_of(exported, flat) is role
    }
