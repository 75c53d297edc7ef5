"""AOTAutograd: a joint forward-backward ATen graph of a Dynamo graph, with what each input and output is."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.config
import torch.fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch._aot_autograd.schemas import OutputType, SubclassCreationMeta
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from verifycompile.torch_interface.communication.rearrange import collectives_rearrange_by_views
from verifycompile.torch_interface.communication.under_way import within_autograd
from verifycompile.torch_interface.dtensor.changed_placements import in_digit_order
from verifycompile.torch_interface.dtensor.sharding_decisions import sharding_decided_once
from verifycompile.torch_interface.dtensor.strided import strided_shards_by_views
from verifycompile.torch_interface.dynamo.fused_attention import said_of_attention, with_attention_written_out
from verifycompile.torch_interface.ranks.mesh import real_object
from verifycompile.torch_interface.ranks.rank_reads import ExportRead, watch_rank_reads


class Origin(enum.Enum):
    """What a flat input or output of the joint graph stands for."""

    ARGUMENT = "argument"
    TANGENT = "tangent"
    RESULT = "result"
    MUTATION = "mutation"
    """Of an output, what is left in an argument; of an input, the cotangent of that."""
    GRADIENT = "gradient"
    OTHER = "other"
    """Something without a counterpart in the Dynamo graph (synthetic bases, random seeds, effect tokens)."""


class Part(enum.Enum):
    """Which part of a tensor subclass a flat value is; ``WHOLE`` for a plain tensor."""

    WHOLE = "whole"
    LOCAL = "local"
    MESH = "mesh"
    SIZE = "size"
    EFFECT = "effect"
    """The token of an effect: it has no value, and says in which order things happen."""
    OTHER = "other"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A DTensor's record: placements on ``mesh``, applied outermost axis first, shape and strides of the whole."""

    mesh: Any
    placements: tuple[Placement, ...]
    global_shape: tuple[Any, ...]
    global_stride: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Flat:
    """One placeholder or one returned value of the joint graph.

    ``index``: position of the argument or result in the Dynamo graph that ``origin`` speaks of; -1 for OTHER.
    ``node`` is None for a returned None, and for an object that a graph break hands on, which ``text`` shows then.
    ``layout``: for the local part of a DTensor. ``text``: torch's description.
    ``requires_grad``: of a result, whether a gradient flows back from it; None of all else.
    """

    node: torch.fx.Node | None
    origin: Origin
    part: Part
    index: int
    layout: Layout | None = None
    text: str = ""
    requires_grad: bool | None = None


@dataclasses.dataclass(frozen=True)
class JointGraph:
    """The exported graph; ``inputs`` in placeholder order, ``outputs`` in the order of the returned list.

    ``rank_reads``: where torch itself put this rank's number into the graph.
    ``rearranged``: the rearrangements around collectives are views here and pieces in what torch compiles.
    ``said``: what is taken for granted of attention that is written out in it.
    """

    graph: torch.fx.GraphModule
    inputs: tuple[Flat, ...]
    outputs: tuple[Flat, ...]
    rank_reads: tuple[ExportRead, ...] = ()
    rearranged: bool = False
    said: tuple[str, ...] = ()


def export_joint(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, for_all_ranks: bool = True
) -> JointGraph:
    """Joint graph of a Dynamo graph, without decompositions, the same on every rank where torch can make it so.

    ``for_all_ranks``: False for the graph of this rank, its coordinates as numbers.
    Forward only where nothing requires grad. Call it where Dynamo calls its backend: it reads the tracing
    context. ``graph`` is left as it was.

    torch differentiates results that are views of inputs, or of one another, outside of the joint graph. Such results
    are copied first, so that every result through which a gradient flows has a tangent.
    """
    said = said_of_attention(graph)
    graph = with_attention_written_out(graph) if said else graph
    joint, views = _export(graph, example_inputs, for_all_ranks=for_all_ranks)
    if views:
        joint, _ = _export(_with_copied_results(graph, views), example_inputs, for_all_ranks=for_all_ranks)
    return dataclasses.replace(joint, said=said)


_OWN_TENSORS = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
"""What AOTAutograd gives a tangent of its own."""


def _with_copied_results(graph: torch.fx.GraphModule, positions: frozenset[int]) -> torch.fx.GraphModule:
    nodes = torch.fx.Graph()
    results = list(nodes.graph_copy(graph.graph, {}))  # type: ignore[arg-type] - Dynamo returns a sequence
    for position in positions:
        original = results[position]
        results[position] = nodes.call_function(torch.clone, (original,))
        results[position].meta.update(original.meta)
    nodes.output(tuple(results))
    copied = torch.fx.GraphModule(graph, nodes)  # with the attributes that the nodes read
    copied.meta.update(graph.meta)
    return copied


def _export(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, for_all_ranks: bool
) -> tuple[JointGraph, frozenset[int]]:
    """The joint graph, and the positions of the results that it lacks, or the gradients of, because they are views."""
    with (
        torch.distributed.config.patch(compile_on_one_rank=for_all_ranks),
        watch_rank_reads() as rank_reads,
        collectives_rearrange_by_views() as rearranged,
        strided_shards_by_views() as strided,
        sharding_decided_once(),
        warnings.catch_warnings(),
        contextlib.ExitStack() as stack,
    ):
        warnings.filterwarnings("ignore", "Error detected in")  # a trace that fails raises, and whoever asked says so
        exported = aot_export_joint_with_descriptors(stack, graph, within_autograd(example_inputs))
    joint = exported.graph_module
    metadata = exported._aot_state.fw_metadata
    subclasses = exported._aot_graph_capture.maybe_subclass_meta
    placeholders = joint.graph.find_nodes(op="placeholder")
    output = next(iter(joint.graph.find_nodes(op="output")))
    returned: list[torch.fx.Node | None] = list(output.args[0])
    returned_descriptors: list[Any] = list(output.meta["desc"])
    tangents = [node for node in placeholders if node.meta["desc"].is_tangent()]
    first_tangent = placeholders.index(tangents[0]) if tangents else len(placeholders)
    # Effect tokens, which order what has side effects, come first, and those of the backward part last.
    input_layouts = _layouts(metadata.subclass_inp_meta, sum(_is_forward_token(n.meta["desc"]) for n in placeholders))
    input_layouts.update(_layouts(metadata.subclass_tangent_meta, first_tangent))
    output_layouts = _layouts(metadata.subclass_fw_graph_out_meta, sum(map(_is_forward_token, returned_descriptors)))
    gradient_metas: list[Any] = list((subclasses.grad_input_metas if subclasses is not None else None) or [])
    gradient_slots = sum(meta.arg_count if isinstance(meta, SubclassCreationMeta) else 1 for meta in gradient_metas)
    backward_tokens = sum(map(_is_backward_token, returned_descriptors))
    output_layouts.update(_layouts(gradient_metas, len(returned) - backward_tokens - gradient_slots))
    requires_grad = [bool(info.requires_grad_for_backward) for info in metadata.output_info]
    held = {_result(_part(descriptor)[0]) for descriptor in returned_descriptors if descriptor is not None}
    views = frozenset(
        position
        for position, info in enumerate(metadata.output_info)
        if info.output_type not in _OWN_TENSORS and (requires_grad[position] or (Origin.RESULT, position) not in held)
    )
    exported_graph = JointGraph(
        graph=joint,
        inputs=tuple(
            _input(node, node.meta["desc"], input_layouts.get(position)) for position, node in enumerate(placeholders)
        ),
        outputs=tuple(
            _output(node, descriptor, output_layouts.get(position), requires_grad)
            for position, (node, descriptor) in enumerate(zip(returned, returned_descriptors, strict=True))
        ),
        rank_reads=tuple(rank_reads),
        rearranged=bool(rearranged or strided),
    )
    return exported_graph, views


def _is_forward_token(descriptor: Any) -> bool:
    return isinstance(descriptor, descriptors.ForwardTokenAOTInput | descriptors.ForwardTokenAOTOutput)


def _is_backward_token(descriptor: Any) -> bool:
    return isinstance(descriptor, descriptors.BackwardTokenAOTInput | descriptors.BackwardTokenAOTOutput)


def _layouts(metas: Sequence[Any], offset: int) -> dict[int, Layout]:
    """Flat position of each DTensor's local tensor -> its layout."""
    layouts: dict[int, Layout] = {}
    for meta in metas:
        if not isinstance(meta, SubclassCreationMeta) or not isinstance(meta.original_subclass, DTensor):
            continue
        attributes = list(meta.attrs)
        position = offset + meta.flat_tensor_start_idx + attributes.index("_local_tensor")
        placements, _, shard_order, *_ = meta.meta
        mesh = real_object(meta.original_subclass.device_mesh)
        orders = [(entry.tensor_dim, tuple(entry.mesh_dims)) for entry in shard_order or ()]
        layouts[position] = Layout(
            mesh=mesh,
            placements=in_digit_order(tuple(placements), orders, tuple(mesh.shape)),
            global_shape=tuple(meta.outer_size),
            global_stride=tuple(meta.outer_stride),
        )
    return layouts


def _input(node: torch.fx.Node, descriptor: Any, layout: Layout | None) -> Flat:
    base, part = _part(descriptor)
    if isinstance(base, descriptors.TangentAOTInput):
        origin, index = _result(base.output)
        if origin is Origin.RESULT:
            return Flat(node, Origin.TANGENT, part, index, layout, descriptor.expr())
        if origin is Origin.MUTATION:
            return Flat(node, Origin.MUTATION, part, index, layout, descriptor.expr())
    if isinstance(base, descriptors.PlainAOTInput):
        return Flat(node, Origin.ARGUMENT, part, base.idx, layout, descriptor.expr())
    return Flat(node, Origin.OTHER, part, -1, layout, descriptor.expr())


def _output(node: Any, descriptor: Any, layout: Layout | None, requires_grad: Sequence[bool]) -> Flat:
    if node is None or descriptor is None:
        return Flat(None, Origin.OTHER, Part.OTHER, -1)
    if not isinstance(node, torch.fx.Node):
        return Flat(None, Origin.OTHER, Part.OTHER, -1, text=repr(node))
    base, part = _part(descriptor)
    origin, index = _result(base)
    has_gradient = requires_grad[index] if origin is Origin.RESULT else None
    return Flat(node, origin, part, index, layout, descriptor.expr(), has_gradient)


def _result(descriptor: Any) -> tuple[Origin, int]:
    if isinstance(descriptor, descriptors.PlainAOTOutput):
        return Origin.RESULT, descriptor.idx
    if isinstance(descriptor, descriptors.InputMutationAOTOutput):
        if isinstance(descriptor.mutated_input, descriptors.PlainAOTInput):
            return Origin.MUTATION, descriptor.mutated_input.idx
    if isinstance(descriptor, descriptors.GradAOTOutput) and isinstance(descriptor.grad_of, descriptors.PlainAOTInput):
        return Origin.GRADIENT, descriptor.grad_of.idx
    return Origin.OTHER, -1


def _part(descriptor: Any) -> tuple[Any, Part]:
    """The described tensor and which part of it; an asynchronous collective's result counts as a plain tensor."""
    if isinstance(descriptor, descriptors.SubclassGetAttrAOTInput | descriptors.SubclassGetAttrAOTOutput):
        base, outer = _part(descriptor.base)
        if outer is not Part.WHOLE:
            return base, outer if descriptor.attr == "elem" else Part.OTHER
        named = {"_local_tensor": Part.LOCAL, "device_mesh": Part.MESH, "elem": Part.WHOLE}
        return base, named.get(descriptor.attr, Part.OTHER)
    sizes = (
        descriptors.SubclassSizeAOTInput
        | descriptors.SubclassStrideAOTInput
        | descriptors.SubclassSizeAOTOutput
        | descriptors.SubclassStrideAOTOutput
    )
    if isinstance(descriptor, sizes):
        return _part(descriptor.base)[0], Part.SIZE
    if _is_forward_token(descriptor) or _is_backward_token(descriptor):
        return descriptor, Part.EFFECT
    return descriptor, Part.WHOLE
