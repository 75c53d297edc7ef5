"""Moves of which entries of stacked tensors each rank's graph takes: those of two layers, each taken for the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene
from verifycompile.program import Program

aten = torch.ops.aten

_INDEX: dict[Any, int] = {aten.select.int: 2, aten.select_backward.default: 3}
"""Where the index stands among the arguments; the dimension stands before it."""
_MOST_ENTRIES = 16
"""Entries of which all pairs are tried."""


def exchanged_entries(scene: Scene) -> Iterator[Move]:
    """Two entries of one dimension, each taken for the other wherever this rank's graph takes them.

    The ranks that take the other one of the two need the same change in their graphs.
    """
    if scene.draft.rank is None:
        return
    taken = sorted({_entry(node) for draft in (scene.draft, *scene.draft.others) for node in _takers(draft.program)})
    for pair in itertools.combinations(taken, 2) if len(taken) <= _MOST_ENTRIES else ():
        first = next((node for node in _takers(scene.draft.program) if _entry(node) in pair), None)
        if first is not None:
            yield _exchanged(scene, first, pair)


def _takers(program: Program) -> list[torch.fx.Node]:
    calls = [node for node in program.graph.graph.nodes if node.target in _INDEX]
    return [node for node in calls if node.args[_INDEX[node.target] - 1] == 0 and isinstance(_entry(node), int)]


def _entry(node: torch.fx.Node) -> Any:
    return node.args[_INDEX[node.target]]


def _exchanged(scene: Scene, first: torch.fx.Node, pair: tuple[int, int]) -> Move:
    others = dict(zip(pair, reversed(pair), strict=True))

    def apply(draft: Draft) -> None:
        for node in _takers(draft.program):
            if _entry(node) in others:
                place = _INDEX[node.target]
                draft.set_arguments(node, (*node.args[:place], others[_entry(node)], *node.args[place + 1 :]))

    def texts(_: Draft) -> tuple[str, str]:
        found, line = _entry(first), scene.line(first)
        wanted, rank = others[found], scene.draft.ranks[0] if scene.draft.ranks else 0
        message = f"on rank {rank} {line} takes entry {found} of what is stacked, where entry {wanted} is needed"
        return message, f"take entry {wanted} in the place of entry {found} on rank {rank} at {line}"

    return Move(("entries", *pair), first.name, "VC108", texts, apply)
