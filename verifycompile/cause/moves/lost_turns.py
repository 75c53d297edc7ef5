"""Moves that add what a loop computed of the pieces of a tensor and did not keep: all turns but one are lost.

Of a sum that is assigned in the place of being added to, the graph has the last turn alone. The others are computed
again as that one is, of the pieces that nothing reads.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, computed, is_floating
from verifycompile.torch_interface.source_lines.model_lines import is_collective
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

_CUTS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)
_MOST_STEPS = 200
"""A turn of more calls is not computed again."""
_MOST_TURNS = 16


def lost_turns(scene: Scene) -> Iterator[Move]:
    """Each value that is computed of one piece of tensors, whose other pieces nothing reads, as a sum over all."""
    read: dict[tuple[int, int], list[torch.fx.Node]] = {}
    for node in scene.calls:
        if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
            whole = node.args[0]
            pieces = len(whole.meta["val"]) if whole.target in _CUTS else 0
            if 1 < pieces <= _MOST_TURNS and len(whole.users) == 1:
                read.setdefault((pieces, int(node.args[1])), []).append(node)  # pyright: ignore[reportArgumentType]  # of a tuple of pieces
    for (pieces, number), nodes in read.items():
        behind = descendants(nodes)
        calls = reversed(scene.calls)
        values = [node for node in calls if node in behind and computed(node) and is_floating(node)]
        # What is communicated at last is the sum.
        communicated = descendants(list(filter(is_collective, values))[:1])
        values.sort(key=lambda node: node in communicated)
        for value in values if len(values) <= _MOST_STEPS else ():
            yield _added(scene, value, tuple(node.name for node in nodes), pieces, number)


def _added(scene: Scene, value: torch.fx.Node, taken: tuple[str, ...], pieces: int, number: int) -> Move:
    def apply(draft: Draft) -> None:
        last = draft.node(value.name)
        first = [draft.node(name) for name in taken]
        behind = descendants(first)
        steps = [node for node in draft.program.graph.graph.nodes if node in ancestors([last]) and node in behind]
        total, place = last, last
        for other in (other for other in range(pieces) if other != number):
            made: dict[torch.fx.Node, torch.fx.Node] = {}
            for step in steps:
                args = (step.args[0], other) if step in first else torch.fx.map_arg(step.args, _taken_from(made))
                place = made[step] = draft.insert(place, step.target, args, step.meta["val"])
                draft.set_arguments(place, place.args, torch.fx.map_arg(step.kwargs, _taken_from(made)))
            place = total = draft.insert(place, aten.add.Tensor, (total, made[last]), last.meta["val"])
        draft.redirect(last, total, [user for user in last.users if user is not total and user not in draft.added])

    def texts(_: Draft) -> tuple[str, str]:
        found = scene.value(value)
        whole = scene.value(scene.draft.node(taken[0]).args[0].args[0])  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType, reportOptionalMemberAccess]  # a piece of a cut, see the caller
        message = (
            f"{found} is kept of turn {number + 1} of {pieces} alone, and nothing reads the other pieces of {whole}"
        )
        return message, f"add up {found} of all {pieces} turns at {scene.line(value)}"

    return Move(("lost turns",), value.name, "VC119", texts, apply)


def _taken_from(made: dict[torch.fx.Node, torch.fx.Node]) -> functools.partial[torch.fx.Node]:
    return functools.partial(_made_of, made)


def _made_of(made: dict[torch.fx.Node, torch.fx.Node], operand: torch.fx.Node) -> torch.fx.Node:
    return made.get(operand, operand)
