"""Moves that gather an input of which each rank has a part before all else is computed of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from torch.distributed.tensor.placement_types import Shard

from verifycompile.cause.draft import Draft, Grown
from verifycompile.cause.moves.growth import Growth
from verifycompile.cause.moves.move import Move, Scene, fixed, is_floating
from verifycompile.cause.moves.whole_dimensions import gathered
from verifycompile.torch_interface.operators.evaluation import is_view

MAX_PARTS = 3
"""Of more inputs of which each rank has a part, each alone is tried as a whole."""


def whole_inputs(scene: Scene) -> Iterator[Move]:
    """Inputs of which each rank has a part, gathered before all else, and the rank's part taken of what is computed."""
    for axis in scene.axes:
        parts = [
            (item, placement.dim)
            for item in scene.draft.program.inputs
            for placement in (item.placements or ())[axis : axis + 1]
            if type(placement) is Shard and item.node in scene.needed and is_floating(item.node)
        ]
        counts = range(1, len(parts) + 1) if len(parts) <= MAX_PARTS else (1,)
        for chosen in itertools.chain.from_iterable(itertools.combinations(parts, count) for count in counts):
            yield _whole_inputs(scene, {item.node.name: dim for item, dim in chosen}, axis)


def _whole_inputs(scene: Scene, dims: Mapping[str, int], axis: int) -> Move:
    def apply(draft: Draft) -> None:
        first = list(map(draft.node, dims))
        wholes: Grown = {}
        for own, dim in zip(first, dims.values(), strict=True):
            users = list(own.users)
            place = next(node for node in draft.program.graph.graph.nodes if node in own.users)
            whole = gathered(draft, place, own, dim, axis)
            wholes[whole] = own.meta["val"]
            draft.redirect(own, whole, users)
        Growth(axis).follow(draft, wholes)

    over, names = scene.names((axis,)), " and ".join(scene.value(scene.draft.node(name)) for name in dims)
    along = " and ".join(str(dim) for dim in dict.fromkeys(dims.values()))
    read = next(node for node in scene.order if not dims.keys().isdisjoint(one.name for one in node.all_input_nodes))
    while is_view(read.target) and (later := next((node for node in scene.order if node in read.users), None)):
        read = later
    message = f"{scene.value(read)} is computed of each rank's part of {names}, where it needs the whole"
    hint = f"gather {names} over {over} along dimension {along} before {scene.value(read)}, and take the rank's part of"
    texts = fixed(message, f"{hint} what is computed of the whole")
    return Move(("whole inputs", axis, *dims.items()), read.name, "VC114", texts, apply, is_late=True)
