"""Gradient hooks as a part of the program: the graph of a hook is put behind the gradient that it gets.

A hook that sums a gradient over ranks is how a program without DTensors ends its backward pass. Hooks that communicate
belong to the implementation alone; others (scaling, clipping by value) are also in the recovered spec.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import DTensor

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.capture.boundary import Export
from verifycompile.program import Blocker
from verifycompile.torch_interface.communication.wrappers import holds_mesh
from verifycompile.torch_interface.dynamo.aot import Flat, JointGraph, Origin, Part, export_joint
from verifycompile.torch_interface.dynamo.frames import GraphBreakError, TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.dynamo.graph_modules import groups_in
from verifycompile.torch_interface.operators.shapes import shape_of
from verifycompile.torch_interface.ranks.mesh import real_object
from verifycompile.torch_interface.ranks.rank_values import has_rank_operators
from verifycompile.torch_interface.source_lines.model_lines import let_outermost_stand
from verifycompile.torch_interface.training_step.gradient_hooks import GradientHook, hooked, registered_hooks

Hooks = Mapping[str, tuple[GradientHook, ...]]
"""Name of an input -> its hooks."""


def hooks_of(exported: Export) -> dict[str, tuple[GradientHook, ...]]:
    """The hooks on every input that has some, those on the tensor itself first."""
    placeholders = exported.traced.graph.graph.find_nodes(op="placeholder")
    found: dict[str, tuple[GradientHook, ...]] = {}
    for placeholder, value, name in zip(placeholders, exported.traced.example_inputs, exported.names, strict=True):
        held = registered_hooks(value) if isinstance(value, torch.Tensor) and value.is_leaf else ()
        hooks = (*held, *exported.traced.hooks.get(placeholder.name, ()))
        if hooks:
            found[name.name] = hooks
    return found


def local_hooks(hooks: Hooks) -> dict[str, tuple[GradientHook, ...]]:
    """The hooks that do not communicate."""
    kept = {name: tuple(hook for hook in own if not holds_mesh(hook.function)) for name, own in hooks.items()}
    return {name: own for name, own in kept.items() if own}


@dataclasses.dataclass(frozen=True)
class Hooked:
    """``exported`` with its hooks, and what is to be said of those that could not be put in."""

    exported: Export
    blockers: tuple[Blocker, ...]
    assumptions: tuple[str, ...]


Outside = Mapping[str, frozenset[frozenset[int]] | None]
"""Name of an input whose gradient leaves the program before its reduction -> the groups of ranks, with this one, over
which that reduction may be; None where any hook that communicates may be it.
"""


def apply_hooks(exported: Export, hooks: Hooks, reduced_outside: Outside | None = None) -> Hooked:
    """Put hooks behind the gradients that leave the graph.

    ``reduced_outside``: of gradients that leave before their reduction, the first hook that communicates over such a
    group is this reduction.

    A hook that cannot be traced is a blocker where it may communicate, and where it is called before the gradient is
    accumulated, which it may write into; else an assumption: then what it does begins where the proof ends, as an
    optimizer does.
    """
    joint = exported.joint
    blockers: list[Blocker] = []
    assumptions: list[str] = []
    outputs = list(joint.outputs)
    for position, flat in enumerate(joint.outputs):
        name = exported.names[flat.index].name if flat.origin is Origin.GRADIENT else ""
        if flat.node is None or not hooks.get(name) or flat.part not in (Part.WHOLE, Part.LOCAL):
            continue
        own = hooks[name]
        if reduced_outside is not None and name in reduced_outside:
            groups = reduced_outside[name]
            own = tuple(itertools.takewhile(lambda hook, f=flat, g=groups: not _may_reduce(hook, f, g), own))
            if outside := hooks[name][len(own) :]:
                listed = ", ".join(f"`{hook.name}`" for hook in outside)
                text = f"the hooks {listed} reduce the gradient of `{name}`, which is declared partial"
                assumptions.append(Assumption(text, AssumptionKind.WRAPPER, [f"grad.{name}"]))
            if not own:
                continue
        graph = _graph_of(own, flat)
        if graph is not None:
            layout = _returned(graph).layout
            outputs[position] = dataclasses.replace(flat, node=_append(joint.graph, graph, flat.node), layout=layout)
            continue
        listed = ", ".join(f"`{hook.name}`" for hook in own)
        message = f"the hooks {listed} on the gradient of `{name}` are no part of the program"
        if any(hook.function is None or not hook.after or holds_mesh(hook.function) for hook in own):
            blockers.append(Blocker(flat.node, "VC305", f"{message}: they do not trace."))
        else:
            text = f"{message}: what they do comes after what is proved"
            assumptions.append(Assumption(text, AssumptionKind.WRAPPER, [f"grad.{name}"]))
    _return(joint.graph, outputs)
    changed = dataclasses.replace(exported, joint=dataclasses.replace(joint, outputs=tuple(outputs)))
    return Hooked(changed, tuple(blockers), tuple(assumptions))


def _may_reduce(hook: GradientHook, flat: Flat, groups: frozenset[frozenset[int]] | None) -> bool:
    """Whether a hook communicates over one of ``groups``, as far as is known."""
    graph = _graph_of((hook,), flat)
    if graph is None:
        return True
    if not has_rank_operators(graph.graph):
        return False
    used = {frozenset(members) for members in groups_in(graph.graph)}
    return groups is None or not used or not used.isdisjoint(groups)


def _graph_of(hooks: Sequence[GradientHook], flat: Flat) -> JointGraph | None:
    """The graph of ``hooks`` on a gradient like ``flat``, plain or a DTensor, None where they do not trace."""
    assert flat.node is not None
    value = flat.node.meta.get("val")
    unknown = any(hook.function is None or (hook.of_node and hook.after) for hook in hooks)
    if unknown or not isinstance(value, torch.Tensor):
        return None
    whole_sizes = () if flat.layout is None else flat.layout.global_shape
    if not all(isinstance(size, int) for size in (*shape_of(value), *whole_sizes)):
        return None
    gradient = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if flat.layout is not None:
        layout, mesh = flat.layout, real_object(flat.layout.mesh)
        whole, stride = torch.Size(layout.global_shape), layout.global_stride
        gradient = DTensor.from_local(gradient, mesh, layout.placements, run_check=False, shape=whole, stride=stride)

    def export(traced: TracedFrame) -> JointGraph:
        return _with_objects(export_joint(traced.graph, traced.example_inputs), traced.example_inputs)

    try:
        graph = trace_frame(frame_of_call(hooked(tuple(hooks)), (gradient,), {}), export)
    except GraphBreakError:
        return None
    results = [item for item in graph.outputs if item.node is not None and item.part is not Part.MESH]
    let_outermost_stand(graph.graph.graph)
    is_alike = len(results) == 1 and results[0].origin is Origin.RESULT and results[0].part is flat.part
    return graph if is_alike else None


def _returned(hook: JointGraph) -> Flat:
    """The gradient that the hooks return."""
    return next(item for item in hook.outputs if item.node is not None and item.part is not Part.MESH)


def _with_objects(joint: JointGraph, inputs: Sequence[Any]) -> JointGraph:
    """Meshes and process groups that enter the graph become attributes of it."""
    module = joint.graph
    for position, flat in enumerate(joint.inputs):
        value = inputs[flat.index] if flat.origin is Origin.ARGUMENT else None
        if flat.part is Part.MESH and isinstance(value, DTensor):
            value = value.device_mesh
        if flat.node is None or isinstance(value, torch.Tensor):
            continue
        name = f"hook_object_{position}"
        setattr(module, name, real_object(value))
        with module.graph.inserting_before(flat.node):
            held = module.graph.create_node("get_attr", name)
        held.meta.update(flat.node.meta)
        flat.node.replace_all_uses_with(held)
    return joint


def _append(target: torch.fx.GraphModule, hook: JointGraph, gradient: torch.fx.Node) -> torch.fx.Node:
    """Copy the nodes of ``hook`` behind ``gradient``; the copy of what it returns."""
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    last = next(iter(target.graph.find_nodes(op="output")))
    with target.graph.inserting_before(last):
        for node in hook.graph.graph.nodes:
            if node.op == "placeholder":
                copies[node] = gradient
            elif node.op == "get_attr":
                name = f"{node.target}_{len(target.graph.nodes)}"
                setattr(target, name, getattr(hook.graph, str(node.target)))
                copies[node] = target.graph.create_node("get_attr", name)
                copies[node].meta.update(node.meta)
            elif node.op != "output":
                copies[node] = target.graph.node_copy(node, copies.__getitem__)
    returned = _returned(hook).node
    assert returned is not None
    return copies[returned]


def _return(graph: torch.fx.GraphModule, outputs: Sequence[Flat]) -> None:
    last = next(iter(graph.graph.find_nodes(op="output")))
    last.args = (tuple(flat.node for flat in outputs),)
