"""Moves of what the turns of a loop take: each the value, or the piece of a tensor, that belongs to its own turn.

Turns are told by what was recorded: the calls that one expression makes, in their order.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import CUTS, Move, Scene, fixed, is_tensor, shape_of
from verifycompile.torch_interface.source_lines.source import frames_of
from verifycompile.torch_interface.source_lines.value_names import is_backward

aten = torch.ops.aten


_STEPPED = 2
"""So many arguments of a slice behind its start tell its end and its step."""

_MOST_TOLD = 4
"""What is taken in so many turns is told one by one."""

_Made = Callable[[Draft, torch.fx.Node], torch.fx.Node]
"""A value of a series, for a call that will take it."""


@dataclasses.dataclass(frozen=True)
class _Member:
    """A value that is one of several: those that an expression computes turn by turn, or the pieces of ``whole``."""

    series: object
    count: int
    turn: int
    of: Callable[[int], _Made]
    whole: torch.fx.Node | None = None


@dataclasses.dataclass(frozen=True)
class _Taken:
    """A call of turn ``turn`` that takes a value of another one."""

    user: torch.fx.Node
    value: torch.fx.Node
    member: _Member
    turn: int


def values_of_turns(scene: Scene) -> Iterator[Move]:
    """Calls that take what another turn has, in the turns of an expression: its own value for each, then for all."""
    found: list[list[_Taken]] = []
    calls = [node for node in scene.draft.program.graph.graph.nodes if node.op == "call_function" and is_tensor(node)]
    expressions: dict[object, list[torch.fx.Node]] = {}
    for node in calls:
        frames = frames_of(node)
        if frames:
            expressions.setdefault((frames, node.target, is_backward(node)), []).append(node)
    members = {node: member for same in expressions.values() for node, member in _members(same)}
    members |= {node: piece for node in calls if (piece := _piece(node)) is not None}
    for same in expressions.values():
        for place in range(len(same[0].all_input_nodes)) if len(same) > 1 else ():
            found += _of_other_turns(same, place, members)
    if len(found) > 1:
        yield _each_its_own(scene, [taken for together in found for taken in together])
    for together in found:
        yield _each_its_own(scene, together)


def _members(same: Sequence[torch.fx.Node]) -> Iterator[tuple[torch.fx.Node, _Member]]:
    def of(turn: int) -> _Made:
        return lambda draft, _: draft.node(same[turn].name)

    for turn, node in enumerate(same) if len(same) > 1 else ():
        yield node, _Member(same[0], len(same), turn, of)


def _piece(node: torch.fx.Node) -> _Member | None:
    """The piece of a tensor that a node is, where all of its pieces have one shape."""
    arguments: tuple[Any, ...] = node.args
    if node.target is operator.getitem and arguments[0].target in CUTS:
        count = len({tuple(piece.shape) for piece in arguments[0].meta["val"]}) == 1 and len(arguments[0].meta["val"])
        series, turn = arguments[0], arguments[1]
    elif node.target in (aten.slice.Tensor, aten.select.int) and all(isinstance(item, int) for item in arguments[1:]):
        dim, first, *last = arguments[1:]
        size: Any = shape_of(arguments[0])[dim]
        length: Any = shape_of(node)[dim] if last else 1
        is_even = isinstance(size, int) and isinstance(length, int) and length > 0 and len(last) < _STEPPED
        count = size // length if is_even and size % length == first % length == 0 else 0
        series, turn = (arguments[0], dim, length), (first // length) % count if count else 0
    else:
        return None

    def of(turn: int) -> _Made:
        return functools.partial(_cut, node.name, turn)

    whole = arguments[0].args[0] if node.target is operator.getitem else arguments[0]
    return _Member(series, count, turn, of, whole) if count and count > 1 else None


def _cut(name: str, turn: int, draft: Draft, user: torch.fx.Node) -> torch.fx.Node:
    own = draft.node(name)
    arguments: tuple[Any, ...] = own.args
    if own.target is aten.slice.Tensor:
        length: Any = shape_of(own)[arguments[1]]
        arguments = (*arguments[:2], turn * length, (turn + 1) * length)
    else:
        arguments = (*arguments[:-1], turn)
    return draft.insert(user, own.target, arguments, own.meta["val"], before=True)


def _of_other_turns(
    same: Sequence[torch.fx.Node], place: int, members: dict[torch.fx.Node, _Member]
) -> Iterator[list[_Taken]]:
    """Those of an expression's calls that take another turn's value, of each series that has one for each of them."""
    by_series: dict[object, list[tuple[torch.fx.Node, torch.fx.Node]]] = {}
    for user in same:
        value = user.all_input_nodes[place] if place < len(user.all_input_nodes) else user
        if value in members and value is not user:
            by_series.setdefault(members[value].series, []).append((user, value))
    for pairs in by_series.values():
        if len(pairs) == members[pairs[0][1]].count:
            taken = [_Taken(*pair, members[pair[1]], turn) for turn, pair in enumerate(pairs)]
            others = [item for item in taken if item.member.turn != item.turn]
            is_reversed = all(item.member.turn == len(taken) - 1 - item.turn for item in taken)
            if others and not is_reversed:  # as the backward of a loop takes them
                yield others


def _each_its_own(scene: Scene, taken: Sequence[_Taken]) -> Move:
    def apply(draft: Draft) -> None:
        for item in taken:
            user = draft.node(item.user.name)
            draft.redirect(draft.node(item.value.name), item.member.of(item.turn)(draft, user), [user])

    def told(item: _Taken, turn: int) -> str:
        if item.member.whole is not None:
            return f"piece {turn} of {scene.value(item.member.whole)}"
        return f"what {scene.line(item.value)} computes in turn {turn + 1}"

    ordered = sorted(taken, key=lambda item: item.user)
    first = ordered[0]
    found, wanted = told(first, first.member.turn), told(first, first.turn)
    message = f"turn {first.turn + 1} of a loop takes {found}, where {wanted} is expected"
    changes = [
        f"use {told(item, item.turn)} in the place of {told(item, item.member.turn)} at {scene.line(item.user)}"
        for item in ordered
    ]
    hints = list(dict.fromkeys(changes))
    more = ["and so in the other turns"] if len(hints) > _MOST_TOLD else []
    texts = fixed(message, "; ".join([*hints[:_MOST_TOLD], *more]))
    return Move(("turn", len(taken)), first.user.name, "VC119", texts, apply)
