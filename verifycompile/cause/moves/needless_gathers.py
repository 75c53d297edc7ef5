"""Moves that leave out a gather of what each rank has, or of which each rank's own part is needed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.growth import Growth
from verifycompile.cause.moves.move import Move, Scene, fixed, shape_of
from verifycompile.cause.moves.whole_dimensions import grown_dim, laid_out, scattered
from verifycompile.torch_interface.ranks.rank_values import functional_collectives

aten = torch.ops.aten


def gathers_of_wholes(scene: Scene) -> Iterator[Move]:
    """Each gathered value of which the ranks hold the same, exchanged for what each of them holds."""
    return _gathers(scene, of_wholes=True)


def needless_gathers(scene: Scene) -> Iterator[Move]:
    """Each other gathered value exchanged for the rank's own part of it."""
    return _gathers(scene, of_wholes=False)


def _gathers(scene: Scene, *, of_wholes: bool) -> Iterator[Move]:
    for node in scene.calls:
        source = node.args[0] if node.target is functional_collectives().all_gather_into_tensor.default else None
        if isinstance(source, torch.fx.Node):
            axes = scene.draft.group_axes(node)
            if set(axes).isdisjoint(scene.differing(source)) is not of_wholes:
                continue
            results = [later for later in laid_out(node) if grown_dim(source, later) is not None]
            if results:
                yield _not_gathered(scene, source, results[-1], axes, of_wholes=of_wholes)


def _not_gathered(
    scene: Scene, source: torch.fx.Node, result: torch.fx.Node, axes: tuple[int, ...], *, of_wholes: bool
) -> Move:
    def apply(draft: Draft) -> None:
        whole, own = draft.node(result.name), draft.node(source.name)
        for waited, gradient, first in _scattered_gradients(draft, whole, own, axes):
            draft.redirect(waited, draft.all_reduce(gradient, "sum", axes))
            unread = draft.insert(first, aten.full.default, (list(shape_of(whole)), 0), before=True)
            unread.meta["val"] = gradient.meta["val"]
            draft.redirect(gradient, unread, [first])  # what nobody reads any more keeps its sizes
        part = draft.insert(whole, aten.clone.default, (own,), own.meta["val"])
        draft.redirect(whole, part)
        Growth(None).follow(draft, {part: whole.meta["val"]})

    over = scene.names(axes) or "its group"
    message = f"{scene.value(result)} is gathered over {over}, where each rank's own part is needed"
    if of_wholes:
        message = f"{scene.value(source)} is gathered over {over}, where every rank has the whole of it"
    hint = f"leave out the gather over {over} at {scene.line(result)}, and use {scene.value(source)}"
    return Move(("not gathered",), result.name, "VC104", fixed(message, hint), apply)


def _scattered_gradients(
    draft: Draft, whole: torch.fx.Node, own: torch.fx.Node, axes: tuple[int, ...]
) -> list[tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node]]:
    """What is reduced and scattered as the derivative of the gather would be: the results, each with what is scattered
    and with the call that lays it out for that.
    """
    library, found = functional_collectives(), []
    for node in draft.program.graph.graph.nodes:
        if node.target is library.reduce_scatter_tensor.default and draft.group_axes(node) == axes:
            value, _, first = scattered(node)
            results = [user for user in node.users if user.target is library.wait_tensor.default]
            if shape_of(value) == shape_of(whole):
                found += [(result, value, first) for result in results if shape_of(result) == shape_of(own)]
    return found
