"""Moves that add a summand which the spec has and the program leaves out: a residual, an auxiliary loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.frontier import holders
from verifycompile.cause.move import Move, Scene, fixed, shape_of

aten = torch.ops.aten

_MOST_HOLDERS = 2
"""Of the nodes that hold a summand, so many are tried, the last ones first: they are one value in several forms."""


def missing_summands(scene: Scene) -> Iterator[Move]:
    """The sum of two values that the spec adds, where both are there and nothing adds them."""
    added = [
        (first, second)
        for node in scene.spec.graph.graph.nodes
        if node.target is aten.add.Tensor and not node.kwargs
        for first, second in [node.args[:2]]
        if isinstance(first, torch.fx.Node) and isinstance(second, torch.fx.Node)
    ]
    if not added or not scene.values:
        return
    program, values = scene.outcome.program, scene.outcome.values
    wanted = list(dict.fromkeys(itertools.chain.from_iterable(added)))
    found = holders(scene.trial, program, values, wanted)
    place = {node.name: number for number, node in enumerate(program.graph.graph.nodes)}
    for pair in added:
        ones, others = ([scene.draft.node(node.name) for node in found[item][-_MOST_HOLDERS:]] for item in pair)
        for one, other in itertools.product(reversed(ones), reversed(others)):
            if shape_of(one) != shape_of(other) or any(_adds(user) for user in one.users if user in other.users):
                continue
            earlier, later = sorted((one, other), key=lambda node: place[node.name])
            for kept in (later, earlier):
                yield _added(scene, earlier, later, kept)


def _adds(node: torch.fx.Node) -> bool:
    return node.target is aten.add.Tensor


def _added(scene: Scene, earlier: torch.fx.Node, later: torch.fx.Node, kept: torch.fx.Node) -> Move:
    """``kept``: the summand in whose place the sum is taken, by all that is computed behind both."""

    def apply(draft: Draft) -> None:
        first, last, replaced = (draft.node(node.name) for node in (earlier, later, kept))
        order = {node: number for number, node in enumerate(draft.program.graph.graph.nodes)}
        total = draft.insert(last, aten.add.Tensor, (last, first))
        users = [user for user in replaced.users if user is not total and order[user] > order[last]]
        draft.redirect(replaced, total, users if replaced is first else None)

    one, other = scene.value(earlier), scene.value(later)
    message = f"{one} is not added to {other}, as it is in the spec"
    texts = fixed(message, f"add {one} to {other} after {scene.line(later)}")
    return Move(("summand", kept is later), later.name, "VC108", texts, apply)
