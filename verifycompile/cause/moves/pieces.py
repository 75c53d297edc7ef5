"""Moves that take pieces of a tensor, or inputs, for each other, and join values along another dimension."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.lost_sums import behind_moves
from verifycompile.cause.moves.move import (
    CUTS,
    Move,
    Scene,
    are_alike,
    computed,
    fixed,
    is_tensor,
    shape_of,
    views,
)
from verifycompile.program import ProgramInput, Role
from verifycompile.torch_interface.operators.evaluation import is_view

aten = torch.ops.aten

_PIECES = (operator.getitem, aten.select.int, aten.slice.Tensor)
MAX_PIECES = 8
"""A tensor of more pieces is a batch, no set of components."""
_MOST_PAIRS = 200
"""Of inputs that may be taken for each other."""
_OF_PIECES = (aten.select_backward.default, aten.slice_backward.default)


def exchanged_pieces(scene: Scene) -> Iterator[Move]:
    """Two neighbouring pieces of a tensor, each taken for the other; in a backward pass, two that are assembled."""
    pieces: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in scene.calls:
        whole = node.args[0] if node.target in _PIECES and node.args else None
        if isinstance(whole, torch.fx.Node):
            pieces.setdefault(whole, []).append(node)
        yield from _exchanged_parts(scene, node)
    for same in pieces.values():
        for first, second in itertools.pairwise(same) if len(same) <= MAX_PIECES else ():
            if are_alike(first, second) and first.args[1:] != second.args[1:]:
                yield _exchanged_uses(scene, first, second)
    gradients = [node for node in scene.calls if node.target in _OF_PIECES]
    for first, second in itertools.pairwise(gradients):
        if are_alike(first, second) and first.args[1:] != second.args[1:]:
            yield _exchanged_gradients(scene, first, second)


def exchanged_inputs(scene: Scene) -> Iterator[Move]:
    """Two inputs or parameters of one shape, each taken for the other wherever it is used, with their gradients."""
    items = [
        item
        for item in scene.draft.program.inputs
        if item.role in (Role.INPUT, Role.PARAMETER) and item.node in scene.needed and is_tensor(item.node)
        if item.node.users  # a rank's graph may have inputs that it does not read
    ]
    for first, second in itertools.islice(_near_pairs(items), _MOST_PAIRS):
        if are_alike(first.node, second.node) and first.placements == second.placements:
            yield _exchanged_inputs(scene, first, second)


def _near_pairs(items: Sequence[ProgramInput]) -> Iterator[tuple[ProgramInput, ProgramInput]]:
    """All pairs, of neighbours first."""
    for distance in range(1, len(items)):
        yield from zip(items, items[distance:], strict=False)


def _exchanged_inputs(scene: Scene, first: ProgramInput, second: ProgramInput) -> Move:
    gradients = {f"grad.{first.name}": f"grad.{second.name}", f"grad.{second.name}": f"grad.{first.name}"}

    def apply(draft: Draft) -> None:
        _exchange_uses(draft, first.node.name, second.node.name)
        nodes = {output.name: output.node for output in draft.program.outputs}
        draft.set_outputs(
            dataclasses.replace(output, node=nodes.get(gradients.get(output.name, ""), output.node))
            for output in draft.program.outputs
        )

    computing = (node for node in scene.order if computed(node) and behind_moves(node) is node)
    readers = (node for node in computing if first.node in map(behind_moves, node.all_input_nodes))
    reader = next(readers, next(iter(first.node.users)))
    both = f"`{first.name}` and `{second.name}`"
    texts = fixed(f"{both} are taken for each other", f"exchange {both} where they are used")
    return Move(("exchange",), reader.name, "VC108", texts, apply)


def _exchanged_uses(scene: Scene, first: torch.fx.Node, second: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        _exchange_uses(draft, first.name, second.name)

    one, other, whole = scene.value(first), scene.value(second), scene.value(first.all_input_nodes[0])
    both = f"{one} and {other}" if one != other else f"two neighbouring pieces of {whole}"
    texts = fixed(f"{both} are taken for each other", f"exchange {both} where they are used")
    return Move(("exchange",), first.name, "VC108", texts, apply)


def _exchange_uses(draft: Draft, first: str, second: str) -> None:
    one, other = draft.node(first), draft.node(second)
    users, taken = [*dict.fromkeys((*one.users, *other.users))], {one: other, other: one}
    for user in users:
        arguments = torch.fx.map_arg((user.args, user.kwargs), lambda operand: taken.get(operand, operand))
        draft.set_arguments(user, *arguments)


def _exchanged_gradients(scene: Scene, first: torch.fx.Node, second: torch.fx.Node) -> Move:
    def apply(draft: Draft) -> None:
        one, other = draft.node(first.name), draft.node(second.name)
        gradient = one.args[0]
        draft.set_arguments(one, (other.args[0], *one.args[1:]))
        draft.set_arguments(other, (gradient, *other.args[1:]))

    both = f"the gradients of {scene.value(first)} and {scene.value(second)}"
    texts = fixed(f"{both} are taken for each other", f"exchange {both}")
    return Move(("exchange",), first.name, "VC108", texts, apply)


def _exchanged_parts(scene: Scene, node: torch.fx.Node) -> Iterator[Move]:
    parts = node.args[0] if node.target in (aten.cat.default, aten.stack.default) else ()
    if not isinstance(parts, (list, tuple)) or len(parts) > MAX_PIECES:
        return
    nodes = [part for part in parts if isinstance(part, torch.fx.Node)]
    for place, (first, second) in enumerate(itertools.pairwise(nodes)):
        if not are_alike(first, second):
            continue

        def apply(draft: Draft, place: int = place) -> None:
            own = draft.node(node.name)
            parts: Any = own.args[0]
            turned = [*parts[:place], parts[place + 1], parts[place], *parts[place + 2 :]]
            draft.set_arguments(own, (turned, *own.args[1:]))

        one, other = scene.value(first), scene.value(second)
        message = f"{one} and {other} are concatenated in the wrong order"
        texts = fixed(message, f"exchange {one} and {other} at {scene.line(node)}")
        yield Move(("exchange parts", place), node.name, "VC108", texts, apply)


def other_dimensions(scene: Scene) -> Iterator[Move]:
    """Values that are concatenated, along another dimension."""
    for node in scene.calls:
        if node.target is not aten.cat.default or len({shape_of(part) for part in node.all_input_nodes}) > 1:
            continue
        rank = len(shape_of(node))
        own = int(node.args[1]) % rank if len(node.args) > 1 else 0  # pyright: ignore[reportArgumentType]  # a number by the schema
        for dim in range(rank):
            if dim != own:
                message = f"{scene.value(node)} joins along dimension {own} what belongs together along dimension {dim}"
                texts = fixed(message, f"join along dimension {dim}, not along dimension {own}, at {scene.line(node)}")
                change = functools.partial(_joined_along, node.name, dim)
                yield Move(("dimension", dim), node.name, "VC108", texts, change)


def _joined_along(name: str, dim: int, draft: Draft) -> None:
    own = draft.node(name)
    draft.set_arguments(own, (own.args[0], dim))
    draft.record_again(own)


def other_pieces(scene: Scene) -> Iterator[Move]:
    """Each operand of a call that is one piece of a tensor, exchanged for another one."""
    for node in scene.calls:
        if is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            piece = views(operand)[-1] if is_tensor(operand) else operand
            count, number = _pieces(piece)
            for other in range(count):
                if other != number:
                    yield _of_another_piece(scene, node, operand, piece, other)


def _pieces(node: torch.fx.Node) -> tuple[int, int]:
    """How many pieces a tensor is cut into of which a node is one, and which one it is."""
    pieces = node.args[0] if node.target is operator.getitem else None
    if not isinstance(pieces, torch.fx.Node) or pieces.target not in CUTS:
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
        for view in reversed(views(taken)[:-1]):
            value = draft.insert(own, view.target, (value, *view.args[1:]), view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    def texts(_: Draft) -> tuple[str, str]:
        value, number = scene.value(node), piece.args[1]
        whole = scene.value(piece.args[0].args[0])  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType, reportOptionalMemberAccess]  # pieces are of a split, see the caller
        message = f"{value} takes piece {number} of {whole}, where piece {other} is expected"
        return message, f"use piece {other} of {whole} in the place of piece {number} at {scene.line(node)}"

    return Move(("piece", other), node.name, "VC108", texts, apply)
