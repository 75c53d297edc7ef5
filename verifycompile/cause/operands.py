"""Moves that give a call another operand, or the argument that the spec's like-named call has."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.move import Move, Scene, is_tensor, shape_of
from verifycompile.torch_interface.evaluation import is_view, operator_name
from verifycompile.torch_interface.ranks import RANK_NAMESPACES, namespace

aten = torch.ops.aten

_CUTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)


def needless_calls(scene: Scene) -> Iterator[Move]:
    """Each call whose result could be one of its operands, left out."""
    for node in reversed(scene.calls):
        if namespace(node) in RANK_NAMESPACES or is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            if _alike(node, operand):
                texts = functools.partial(_left_out_texts, scene, node, operand)
                yield Move(("leave out",), node.name, "VC108", texts, _left_out(node.name, operand.name))


def _left_out_texts(scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, _: Draft) -> tuple[str, str]:
    found, wanted = scene.value(node), scene.value(operand)
    return f"{found} is computed where {wanted} is needed", f"use {wanted} in the place of {found}"


def other_operands(scene: Scene) -> Iterator[Move]:
    """Each operand of a call exchanged for an earlier value of its shape and type, the nearest first.

    Where the call takes a view of something, what is exchanged is what the view looks at.
    """
    order = scene.draft.program.graph.graph.nodes
    position = {node: place for place, node in enumerate(order)}
    values = [node for node in order if is_tensor(node)]
    for node in scene.calls:
        if is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            if not is_tensor(operand):
                continue
            for depth, looked_at in enumerate(_views(operand)):
                earlier = [other for other in values if position[other] < position[node] and _alike(looked_at, other)]
                for other in sorted(earlier, key=lambda other: abs(position[other] - position[looked_at])):
                    if other is looked_at or _same_value(scene, looked_at, other):
                        continue
                    texts = functools.partial(_exchanged_texts, scene, node, looked_at, other)
                    change = _exchanged(node.name, operand.name, depth, other.name)
                    yield Move(("operand", other.name), node.name, "VC108", texts, change)


def other_pieces(scene: Scene) -> Iterator[Move]:
    """Each operand of a call that is one piece of a tensor, exchanged for another one: that of another micro-batch."""
    for node in scene.calls:
        if is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            piece = _views(operand)[-1] if is_tensor(operand) else operand
            count, number = _pieces(piece)
            for other in range(count):
                if other != number:
                    yield _of_another_piece(scene, node, operand, piece, other)


def _pieces(node: torch.fx.Node) -> tuple[int, int]:
    """How many pieces a tensor is cut into of which a node is one, and which one it is."""
    pieces = node.args[0] if node.target is operator.getitem else None
    if not isinstance(pieces, torch.fx.Node) or pieces.target not in _CUTS:
        return 0, 0
    shapes = [tuple(piece.shape) for piece in pieces.meta["val"]]
    number = node.args[1]
    alike = isinstance(number, int) and all(shape == shapes[0] for shape in shapes)
    return (len(shapes), number) if alike and isinstance(number, int) else (0, 0)


def _of_another_piece(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, piece: torch.fx.Node, other: int
) -> Move:
    def apply(draft: Draft) -> None:
        own, taken, held = (draft.node(item.name) for item in (node, operand, piece))
        value = draft.insert(own, operator.getitem, (held.args[0], other), held.meta["val"], before=True)
        for view in reversed(_views(taken)[:-1]):
            value = draft.insert(own, view.target, (value, *view.args[1:]), view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    def texts(_: Draft) -> tuple[str, str]:
        value, number = scene.value(node), piece.args[1]
        whole = scene.value(piece.args[0].args[0])  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType, reportOptionalMemberAccess, reportUnknownArgumentType]
        message = f"{value} takes piece {number} of {whole}, where piece {other} is expected"
        return message, f"use piece {other} of {whole} in the place of piece {number} at {scene.line(node)}"

    return Move(("piece", other), node.name, "VC108", texts, apply)


def _views(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A value, what it is a view of, and so on."""
    found = [node]
    while is_view(found[-1].target) and found[-1].all_input_nodes and is_tensor(found[-1].all_input_nodes[0]):
        found.append(found[-1].all_input_nodes[0])
    return found


def _exchanged_texts(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, other: torch.fx.Node, _: Draft
) -> tuple[str, str]:
    found, wanted = scene.value(operand), scene.value(other)
    message = f"{scene.value(node)} takes {found}, where {wanted} is expected"
    return message, f"use {wanted} in the place of {found} at {scene.line(node)}"


def arguments_of_spec(scene: Scene) -> Iterator[Move]:
    """The numbers, dimensions and flags of a call, as the spec's calls of the same operator have them."""
    spec: dict[object, dict[str, Any]] = {}
    for node in scene.spec.graph.graph.nodes:
        if node.op == "call_function" and operator_name(node.target) is not None:
            listed = _constants(node)
            spec.setdefault(node.target, {}).setdefault(repr(listed), listed)
    for node in scene.calls:
        own = _constants(node)
        for key, given in spec.get(node.target, {}).items():
            if key == repr(own) or set(given) != set(own):
                continue
            changed = {place: value for place, value in given.items() if repr(value) != repr(own[place])}
            if len(changed) != 1 or any(isinstance(place, str) for place in changed):
                continue
            ((place, value),) = changed.items()
            texts = functools.partial(_argument_texts, scene, node, int(place), value)
            change = _with_argument(node.name, int(place), value)
            yield Move(("argument", place, repr(value)), node.name, "VC108", texts, change)


def _argument_texts(scene: Scene, node: torch.fx.Node, place: int, wanted: object, draft: Draft) -> tuple[str, str]:
    found = draft.node(node.name).args[place]
    message = f"{scene.value(node)} is computed with {found}, where the spec has {wanted}"
    return message, f"pass {wanted} in the place of {found} at {scene.line(node)}"


def _alike(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    return is_tensor(other) and shape_of(node) == shape_of(other) and node.meta["val"].dtype == other.meta["val"].dtype


def _same_value(scene: Scene, node: torch.fx.Node, other: torch.fx.Node) -> bool:
    first, second = scene.parts(node), scene.parts(other)
    if first is None or second is None:
        return False
    return all(a is b or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _constants(node: torch.fx.Node) -> dict[int | str, Any]:
    """The arguments of a call that are no tensors, by position or name."""
    places: dict[int | str, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    return {place: value for place, value in places.items() if not _holds_nodes(value)}


def _holds_nodes(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_nodes(item) for item in value)
    return isinstance(value, (torch.fx.Node, torch.SymInt, torch.device, torch.dtype))


def _left_out(name: str, operand: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        draft.redirect(draft.node(name), draft.node(operand))

    return apply


def _exchanged(name: str, operand: str, depth: int, other: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, taken = draft.node(name), draft.node(operand)
        value = draft.node(other)
        for view in reversed(_views(taken)[:depth]):
            arguments = (value, *view.args[1:])
            value = draft.insert(own, view.target, arguments, view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    return apply


def _with_argument(name: str, place: int, value: object) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own = draft.node(name)
        draft.set_arguments(own, (*own.args[:place], value, *own.args[place + 1 :]))

    return apply
