"""Moves that gather an operand of a matrix product, of which each rank has a part along a dimension that is kept.

The other operand is cut along the same mesh axis: of its result no rank has what the ranks make together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Shard

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.growth import Growth
from verifycompile.cause.moves.move import Move, Scene, shape_of, views
from verifycompile.cause.moves.whole_dimensions import gathered
from verifycompile.program import Role
from verifycompile.torch_interface.source_lines.value_names import is_backward

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


def gathered_products(scene: Scene) -> Iterator[Move]:
    """Each product of parts that the ranks hold of both operands, with the first one gathered."""
    for node in scene.calls:
        if node.target not in _PRODUCTS or is_backward(node):
            continue
        left, right = (operand for operand in node.args[-2:] if isinstance(operand, torch.fx.Node))
        chain = (node, *views(left))
        source = chain[-1]
        for axis in scene.differing(source):
            if axis in scene.differing(right):
                likely = _sharded_dims(scene, axis)
                dims = sorted(range(len(shape_of(source)) - 1), key=lambda dim: dim not in likely)
                for of_forward, dim in itertools.product((False, True), dims):
                    yield _gathered(scene, chain, dim, axis, of_forward=of_forward)


def _sharded_dims(scene: Scene, axis: int) -> set[int]:
    """The dimensions of which inputs say that the ranks along a mesh axis have parts."""
    inputs = [item for item in scene.draft.program.inputs if item.role is Role.INPUT]
    placements = [(item.placements or ())[axis : axis + 1] for item in inputs]
    return {own.dim for (own,) in filter(None, placements) if isinstance(own, Shard)}


def _gathered(scene: Scene, chain: Sequence[torch.fx.Node], dim: int, axis: int, *, of_forward: bool) -> Move:
    """``chain``: the product, the views that it takes, and what they are views of."""
    product, reader, source = chain[0], chain[-2], chain[-1]
    growth = Growth(axis, of_forward=of_forward)

    def apply(draft: Draft) -> None:
        own, first = draft.node(source.name), draft.node(reader.name)
        whole = gathered(draft, first, own, dim, axis)
        draft.redirect(own, whole, [first])
        growth.follow(draft, {whole: own.meta["val"]})

    def texts(draft: Draft) -> tuple[str, str]:
        over, value, part = scene.names((axis,)), scene.value(product), scene.value(source)
        message = f"{value} takes {part}, of which each rank of {over} has a part along dimension {dim}, for the whole"
        hint = f"gather {part} over {over} along dimension {dim} before {value}"
        taken = [name for name in growth.cut if not is_backward(draft.node(name))]
        returned = [f"`{name}`" for name in growth.returned]
        parts = " and ".join([*(scene.value(draft.node(name)) for name in taken), *returned])
        return message, f"{hint}, and take the rank's part of {parts}" if parts else hint

    kind = ("gathered", dim, axis, of_forward)
    return Move(kind, product.name, "VC104", texts, apply, lacks_derivative=of_forward)
