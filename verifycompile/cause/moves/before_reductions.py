"""Moves about what an all-reduce takes, used where its result is meant."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, Scene, fixed
from verifycompile.torch_interface.ranks.rank_values import functional_collectives


def reduced_operands(scene: Scene) -> Iterator[Move]:
    """Each later use of a value that was all-reduced, as a use of what the all-reduce gave."""
    library, places = functional_collectives(), {node: place for place, node in enumerate(scene.order)}
    for node in [node for node in scene.calls if node.target is library.all_reduce.default]:
        source, over = node.all_input_nodes[0], scene.names(scene.draft.group_axes(node)) or "its group"
        result = next((user for user in node.users if user.target is library.wait_tensor.default), node)
        for user in [user for user in source.users if places.get(user, -1) > places.get(result, len(places))]:
            code = "VC101" if node.args[1] == "sum" else "VC108"
            message = f"{scene.value(source)} is each rank's own; what {scene.line(node)} reduces over {over} is needed"
            reduced = f"what {scene.line(node)} makes of {scene.value(source)}"
            texts = fixed(message, f"use {reduced} in its place at {scene.line(user)}")
            change = functools.partial(_use, source.name, result.name, user.name)
            yield Move(("reduced", result.name), user.name, code, texts, change)


def _use(source: str, result: str, user: str, draft: Draft) -> None:
    draft.redirect(draft.node(source), draft.node(result), [draft.node(user)])
