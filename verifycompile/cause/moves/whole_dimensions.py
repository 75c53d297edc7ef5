"""Moves that let a call read a dimension as a whole of which each rank holds a part."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError, Grown, called
from verifycompile.cause.moves.move import Move, Scene, fixed, is_tensor, shape_of, views
from verifycompile.refinement.own_part import dimensions_read_whole
from verifycompile.torch_interface.ranks.rank_values import functional_collectives
from verifycompile.witness.inputs import tangent_inputs
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

LAYOUTS = (
    operator.getitem, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.cat.default,
    aten.transpose.int, aten.permute.default, aten.view.default, aten.reshape.default, aten.clone.default,
    aten._unsafe_view.default,  # noqa: SLF001 - the name of an operator
)  # fmt: skip

_REPEATS = (aten.cat.default, aten.repeat.default)


def gathered_operands(scene: Scene) -> Iterator[Move]:
    """Each call that reads dimensions of its operand as a whole, computed on all ranks' parts assembled."""
    for is_kept in (False, True):
        for node in scene.order:
            for dim in dimensions_read_whole(node):
                for axis in scene.axes:
                    yield (_on_the_whole_kept if is_kept else _on_the_whole)(scene, node, dim, axis)


def _on_the_whole(scene: Scene, node: torch.fx.Node, dim: int, axis: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        source = own.all_input_nodes[0]
        whole = gathered(draft, own, source, dim, axis)
        arguments = torch.fx.map_arg(own.args, lambda operand: whole if operand is source else operand)
        new = draft.insert(own, own.target, arguments, before=True)
        new.kwargs = own.kwargs
        new.meta["val"] = called(new)
        pieces = [user for user in own.users if user.target is operator.getitem]
        for piece in pieces or [own]:
            value = (
                draft.insert(own, operator.getitem, (new, piece.args[1]), new.meta["val"][piece.args[1]])
                if pieces
                else new
            )
            draft.redirect(piece, own_part(draft, piece, value, axis, shape_of(piece)))

    over, value, operand = scene.names((axis,)), scene.value(node), scene.value(node.all_input_nodes[0])
    message = f"{value} runs over dimension {dim} of {operand}, of which each rank of {over} holds a part"
    hint = f"gather {operand} over {over} along dimension {dim} before {value}, and take the rank's part of the result"
    return Move(("whole", dim, axis), node.name, "VC114", fixed(message, hint), apply)


def _on_the_whole_kept(scene: Scene, node: torch.fx.Node, dim: int, axis: int) -> Move:
    """What follows is computed of the whole as well, and its gradients: the loss of gathered logits."""

    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        source = own.all_input_nodes[0]
        draft.redirect(source, gathered(draft, own, source, dim, axis), [own])
        _differentiated_again(draft, own, axis)

    over, value, operand = scene.names((axis,)), scene.value(node), scene.value(node.all_input_nodes[0])
    message = f"{value} runs over dimension {dim} of {operand}, of which each rank of {over} holds a part"
    hint = f"gather {operand} over {over} along dimension {dim} before {value}"
    return Move(("whole kept", dim, axis), node.name, "VC114", fixed(message, hint), apply)


def _differentiated_again(draft: Draft, own: torch.fx.Node, axis: int) -> None:
    """Records what follows from ``own``, of which the operand is whole now, and takes the rank's part of gradients
    where they leave the backward of what is computed of the whole.
    """
    gradients = descendants(entry.node for entry in tangent_inputs(draft.program).values())
    later = descendants([own]) - gradients
    calls = [node for node in gradients if node.op == "call_function"]
    of_whole = gradients & ancestors(node for node in calls if not later.isdisjoint(node.all_input_nodes))
    sized: list[torch.fx.Node] = []
    if is_tensor(own):
        part, whole = list(shape_of(own)), list(called(own).shape)
        sized = [node for node in of_whole if part in node.args]
        for node in sized:
            draft.set_arguments(node, [whole if item == part else item for item in node.args])

    def adapt(node: torch.fx.Node, grown: Grown) -> None:
        for operand in node.all_input_nodes if node in gradients - of_whole else ():
            if operand in grown and operand in gradients:
                taken = own_part(draft, operand, operand, axis, tuple(grown[operand].shape))
                draft.redirect(operand, taken, [node])

    draft.record_again(own, *sized, adapt=adapt)


def gathered_along_others(scene: Scene) -> Iterator[Move]:
    """Each gathered value that is laid out as if another dimension had been gathered, gathered along that one."""
    for node in scene.calls:
        source = node.args[0] if node.target is functional_collectives().all_gather_into_tensor.default else None
        axes = scene.draft.group_axes(node) if isinstance(source, torch.fx.Node) else ()
        if isinstance(source, torch.fx.Node) and len(axes) == 1:
            for part in _copied(source):
                dims = ((later, grown_dim(part, later)) for later in reversed(laid_out(node)))
                later, dim = next(((later, dim) for later, dim in dims if dim is not None), (node, None))
                if dim is not None:
                    yield _gathered_along(scene, part, later, dim, axes[0])


def gathered_repeats(scene: Scene) -> Iterator[Move]:
    """Each value that repeats another one as often as there are ranks, as the parts of all ranks."""
    for node in scene.calls:
        parts = list(dict.fromkeys(node.all_input_nodes))
        dim = grown_dim(parts[0], node) if node.target in _REPEATS and len(parts) == 1 and is_tensor(parts[0]) else None
        if dim is None:
            continue
        whole, part = node.meta["val"].shape[dim], parts[0].meta["val"].shape[dim]
        for axis in scene.differing(parts[0]):
            if whole == part * scene.ranks((axis,)):
                over, value, own = scene.names((axis,)), scene.value(node), scene.value(parts[0])
                message = f"{value} repeats {own}, this rank's part, where the parts of all ranks of {over} belong"
                texts = fixed(message, f"gather {own} over {over} along dimension {dim} at {scene.line(node)}")
                yield dataclasses.replace(_gathered_along(scene, parts[0], node, dim, axis), texts=texts)


def _copied(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A value, what it is a view or a copy of, and so on."""
    found = views(node)
    return [*found, *_copied(found[-1].all_input_nodes[0])] if found[-1].target is aten.clone.default else found


def _gathered_along(scene: Scene, source: torch.fx.Node, result: torch.fx.Node, dim: int, axis: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(result.name)
        draft.redirect(own, gathered(draft, own, draft.node(source.name), dim, axis))

    over, value, part = scene.names((axis,)), scene.value(result), scene.value(source)
    message = f"{value} has the shape of {part} gathered along dimension {dim}, and its elements in another order"
    hint = f"gather {part} over {over} along dimension {dim}"
    return Move(("gathered along", dim), result.name, "VC104", fixed(message, hint), apply)


def scattered_along_others(scene: Scene) -> Iterator[Move]:
    """Each value that is reduced and scattered, scattered along another dimension."""
    for node in scene.calls:
        if node.target is functional_collectives().reduce_scatter_tensor.default:
            whole, own, _ = scattered(node)
            for dim in range(len(shape_of(whole))):
                if dim != own:
                    yield _scattered_along(scene, node, whole, own, dim)


def scattered(node: torch.fx.Node) -> tuple[torch.fx.Node, int, torch.fx.Node]:
    """What a call reduces and scatters, along which dimension, and what takes it: the call, or the first one that lays
    it out for the call, where the dimension is not the first one.
    """
    value, first = node.all_input_nodes[0], node
    found = value, 0, node
    while value.target in LAYOUTS:
        first, value = value, value.all_input_nodes[0]
        dim = grown_dim(node, value) if is_tensor(value) else None
        found = found if dim is None else (value, dim, first)
    return found


def _scattered_along(scene: Scene, node: torch.fx.Node, whole: torch.fx.Node, own: int, dim: int) -> Move:
    def apply(draft: Draft) -> None:
        library, old, value = functional_collectives(), draft.node(node.name), draft.node(whole.name)

        def call(target: Any, *args: Any) -> torch.fx.Node:
            new = draft.insert(old, target, args, before=True)
            new.meta["val"] = called(new)
            return new

        first = call(aten.transpose.int, value, 0, dim) if dim else value
        part = call(library.wait_tensor.default, call(node.target, first, *old.args[1:]))
        part = call(aten.transpose.int, part, 0, dim) if dim else part
        for waited in [user for user in old.users if user.target is library.wait_tensor.default]:
            users = list(waited.users)
            draft.redirect(waited, part)
            draft.record_again(*users)

    over, value = scene.names(scene.draft.group_axes(node)) or "its group", scene.value(whole)
    message = f"{value} is scattered over {over} along dimension {own}, where the ranks hold parts of dimension {dim}"
    hint = f"scatter {value} along dimension {dim}, not along dimension {own}, at {scene.line(node)}"
    return Move(("scattered along", dim), node.name, "VC104", fixed(message, hint), apply)


def laid_out(gathered: torch.fx.Node) -> list[torch.fx.Node]:
    """What holds the elements of a gathered value and nothing else, in graph order."""
    found, kept = {gathered}, (*LAYOUTS, functional_collectives().wait_tensor.default)
    for node in gathered.graph.nodes:
        if node.target in kept and node.all_input_nodes and found.issuperset(node.all_input_nodes):
            found.add(node)
    return [node for node in gathered.graph.nodes if node in found and is_tensor(node)]


def grown_dim(source: torch.fx.Node, result: torch.fx.Node) -> int | None:
    """The dimension of which the result has more than the source, where it is one alone."""
    own, whole = shape_of(source), shape_of(result)
    differing = [dim for dim in range(len(own)) if len(own) == len(whole) and own[dim] != whole[dim]]
    return differing[0] if len(differing) == 1 else None


def gathered(draft: Draft, place: torch.fx.Node, source: torch.fx.Node, dim: int, axis: int) -> torch.fx.Node:
    """All ranks' parts of ``source`` assembled along ``dim``, in front of ``place``."""
    ranks = _ranks(draft, axis)

    def call(target: Any, args: tuple[Any, ...], shape: list[Any]) -> torch.fx.Node:
        return draft.insert(place, target, args, source.meta["val"].new_empty(shape), before=True)

    shape: list[Any] = list(shape_of(source))
    turned = [shape[dim], *shape[1:dim], shape[0], *shape[dim + 1 :]] if dim else shape
    first = call(aten.transpose.int, (source, 0, dim), turned) if dim else source
    whole = [turned[0] * ranks, *turned[1:]]
    library = functional_collectives()
    gathered = call(library.all_gather_into_tensor.default, (first, ranks, draft.group((axis,))), whole)
    waited = call(library.wait_tensor.default, (gathered,), whole)
    shape[dim] *= ranks
    return call(aten.transpose.int, (waited, 0, dim), shape) if dim else waited


def _ranks(draft: Draft, axis: int) -> int:
    if draft.program.mesh is None:
        raise DraftError("no mesh")
    return draft.program.mesh.axes[axis].size


def own_part(
    draft: Draft, place: torch.fx.Node, value: torch.fx.Node, axis: int, own: tuple[object, ...]
) -> torch.fx.Node:
    """The rank's part of ``value``, of the shape ``own``, behind ``place``."""
    found = tuple(value.meta["val"].shape)
    wider = [dim for dim in range(len(own)) if own[dim] != found[dim]]
    if len(own) != len(found) or len(wider) > 1:
        raise DraftError("a result of another shape")
    if not wider:
        return value
    (dim,) = wider
    length: Any = own[dim]
    start = draft.number(place, operator.mul, (draft.coordinate(axis), length))
    stop = draft.number(place, operator.add, (start, length))
    part = value.meta["val"].new_empty(own)
    return draft.insert(place, aten.slice.Tensor, (value, dim, start, stop), part)
