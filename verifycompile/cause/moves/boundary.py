"""Moves of the boundary: another placement of an input, a parameter or an output in the plan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, fixed
from verifycompile.program import OutputKind, ProgramInput, Role
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.inputs import global_shape

Layout = tuple[Placement, ...]

METADATA = "DTensor metadata"
_LAID_OUT_BY = {"out_placements": "`out_placements`", METADATA: METADATA}
"""What says how an output lies on the ranks."""

_OPTIONS = {Role.INPUT: "in_placements", Role.PARAMETER: "param_placements", Role.BUFFER: "param_placements"}


def other_input_placements(scene: Scene) -> Iterator[Move]:
    """Each input in another layout under which the ranks' parts have the shapes that they have."""
    wholes = {item.name: item.node.meta.get("val") for item in scene.spec.inputs}
    for item in scene.draft.program.inputs:
        whole = wholes.get(item.name)
        if item.role not in _OPTIONS or item.placements is None or item.node not in scene.needed:
            continue
        # Nobody says by mistake that a rank holds a summand: then the program lacks the sum.
        if not isinstance(whole, torch.Tensor) or any(isinstance(one, Partial) for one in item.placements):
            continue
        for layout in _layouts(item, tuple(whole.shape), scene):
            shown, option = shown_layout(layout), _OPTIONS[item.role]
            message = f"`{item.name}` is placed {shown_layout(item.placements)}, where the program needs {shown}"
            hint = f'place `{item.name}` as {shown} in the plan (`{option}={{"{item.name}": {shown}}}`)'
            texts = fixed(message, hint)
            yield Move(("input", shown), item.node.name, "VC104", texts, _placed(item.name, layout))


def _layouts(item: ProgramInput, whole: tuple[object, ...], scene: Scene) -> Iterator[Layout]:
    local = item.node.meta["val"]
    if any(not isinstance(size, int) for size in (*whole, *local.shape)):
        return
    choices: list[list[Placement]] = []
    for axis in scene.mesh.axes:
        kinds: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(local.dim()))]
        # Nobody has a parameter of which each rank holds a summand.
        summands = local.is_floating_point() and item.role is Role.INPUT
        kinds += [Partial("sum"), Partial("avg")] if summands else []
        choices.append(kinds if axis.size > 1 else [Replicate()])
    for layout in itertools.product(*choices):
        if layout == item.placements:
            continue
        try:
            if global_shape(local.shape, layout, scene.mesh.shape) == whole:
                yield layout
        except EvaluationError:
            continue


def other_output_placements(scene: Scene) -> Iterator[Move]:
    """Each wanted output with a declared layout, in every other one."""
    for output in scene.outputs:
        value = output.node.meta.get("val")
        if output.declared not in _LAID_OUT_BY or output.kind is not OutputKind.VALUE or output.placements is None:
            continue
        if not isinstance(value, torch.Tensor):
            continue
        kinds: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(value.dim())), Partial("sum")]
        for layout in itertools.product(*(kinds if axis.size > 1 else [Replicate()] for axis in scene.mesh.axes)):
            if layout != output.placements:
                shown, found = shown_layout(layout), shown_layout(output.placements)
                message = f"`{output.name}` is returned as {shown}, {_LAID_OUT_BY[output.declared]} says {found}"
                hint = f'if {shown} is meant, say so: `out_placements={{"{output.name}": {shown}}}`'
                if output.declared == METADATA:
                    hint = f"say where its parts lie: `DTensor.from_local(result.to_local(), mesh, {shown})`"
                texts = fixed(message, hint)
                change = _required(output.name, layout)
                yield Move(("output", shown), output.node.name, "VC106", texts, change, is_late=True)


def shown_layout(layout: Layout) -> str:
    """Placements as users write them."""
    listed = ", ".join(_text(item) for item in layout)
    return f"({listed},)" if len(layout) == 1 else f"({listed})"


def _text(item: Placement) -> str:
    if isinstance(item, Shard):
        return f"Shard({item.dim})"
    if isinstance(item, Partial):
        return "Partial()" if item.reduce_op == "sum" else f'Partial("{item.reduce_op}")'
    return "Replicate()" if isinstance(item, Replicate) else str(item)


def _placed(name: str, layout: Layout) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        draft.set_input_placements(name, layout)

    return apply


def _required(name: str, layout: Layout) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        draft.set_input_placements(name, layout)  # of its cotangent
        draft.set_outputs(
            dataclasses.replace(item, placements=layout, global_shape=None, global_stride=None)
            if item.name == name
            else item
            for item in draft.program.outputs
        )

    return apply
