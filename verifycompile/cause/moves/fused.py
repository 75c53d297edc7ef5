"""Moves for weights that hold several matrices side by side: each of them is to be cut by itself, not all as one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from fractions import Fraction

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Placement, Shard

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import Move, Scene, fixed, is_tensor, shape_of
from verifycompile.program import ProgramInput, Role
from verifycompile.torch_interface.dtensor.placements import block_shard

aten = torch.ops.aten

Shares = tuple[Fraction, ...]
"""The lengths of parts that lie side by side, over the length of all."""


def own_components(scene: Scene) -> Iterator[Move]:
    """Each slice that is a rank's part of a dimension: the rank's part of each component of the dimension instead."""
    for node in scene.calls:
        source = node.args[0] if node.target is aten.slice.Tensor else None
        if not isinstance(source, torch.fx.Node) or not is_tensor(source) or len(node.args) < 4:
            continue
        dim = node.args[1]
        if not isinstance(dim, int) or not is_size(shape_of(source)[dim]) or not is_size(shape_of(node)[dim]):
            continue
        for axis in scene.axes:
            ranks = scene.mesh.axes[axis].size
            if shape_of(source)[dim] == _times(shape_of(node)[dim], ranks):
                for shares in _components(scene, shape_of(source)[dim]):
                    texts = _texts(scene, scene.value(source), shares, axis)
                    yield Move(("components", axis, shares), node.name, "VC118", texts, _cut(node.name, axis, shares))


def component_placements(scene: Scene, roles: Collection[Role]) -> Iterator[Move]:
    """Each sharded parameter or input whose shards are parts of equal components, not of the whole."""
    for item in scene.draft.program.inputs:
        if item.role not in roles or item.placements is None:
            continue
        for axis, placement in enumerate(item.placements):
            if type(placement) is not Shard or axis not in scene.axes or item.node not in scene.needed:
                continue
            ranks = scene.mesh.axes[axis].size
            for shares in _components(scene, _times(shape_of(item.node)[placement.dim], ranks)):
                if len(set(shares)) == 1:
                    layout = _strided(item, axis, placement.dim, len(shares))
                    texts = _texts(scene, f"`{item.name}`", shares, axis)
                    change = _placed(item.name, layout)
                    yield Move(("placed", axis, shares), item.node.name, "VC118", texts, change)


def is_size(value: object) -> bool:
    """Whether a size is a plain number."""
    return isinstance(value, int) and value > 0


def _times(size: object, ranks: int) -> int:
    return size * ranks if isinstance(size, int) else 0


def _components(scene: Scene, whole: object) -> list[Shares]:
    """How the spec divides dimensions of a size, and in two or three equal parts."""
    found: dict[Shares, None] = {}
    if not isinstance(whole, int) or whole == 0:
        return []
    for node in scene.spec.graph.graph.nodes:
        pieces = node.meta.get("val")
        if not isinstance(pieces, (list, tuple)) or not all(isinstance(piece, torch.Tensor) for piece in pieces):
            continue
        for dim in range(pieces[0].dim() if pieces else 0):
            sizes = [piece.shape[dim] for piece in pieces if dim < piece.dim()]
            if len(sizes) > 1 and all(map(is_size, sizes)) and sum(sizes) == whole:
                found[tuple(Fraction(size, whole) for size in sizes)] = None
    for count in (2, 3):
        found[tuple(Fraction(1, count) for _ in range(count))] = None
    return list(found)


def _texts(scene: Scene, value: str, shares: Shares, axis: int) -> Callable[[Draft], tuple[str, str]]:
    over, count = scene.names((axis,)), len(shares)
    message = f"{value} holds {count} components side by side and is cut over {over} as one: a rank's part mixes them"
    hint = f"cut each of the {count} components of {value} over {over} by itself, and join the rank's parts"
    if len(set(shares)) == 1:
        ranks = scene.mesh.axes[axis].size
        hint += f": `torch.cat([part.chunk({ranks}, dim)[rank] for part in weight.chunk({count}, dim)], dim)`"
    return fixed(message, hint)


def _cut(name: str, axis: int, shares: Shares) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own = draft.node(name)
        source, dim = own.args[0], own.args[1]
        if not isinstance(source, torch.fx.Node) or not isinstance(dim, int):
            raise DraftError("no slice of a tensor")
        whole, length = int(source.meta["val"].shape[dim]), int(own.meta["val"].shape[dim])
        coordinate = draft.coordinate(axis)
        parts: list[torch.fx.Node] = []
        begin = Fraction(0)
        for share in shares:
            part = share * length
            if part.denominator != 1 or (begin * whole).denominator != 1:
                raise DraftError("components that the ranks do not divide")
            first = draft.number(own, operator.mul, (coordinate, int(part)))
            first = draft.number(own, operator.add, (first, int(begin * whole)))
            last = draft.number(own, operator.add, (first, int(part)))
            value = own.meta["val"].narrow(dim, 0, int(part))
            parts.append(draft.insert(own, aten.slice.Tensor, (source, dim, first, last), value, before=True))
            begin += share
        draft.redirect(own, draft.insert(own, aten.cat.default, (parts, dim)))

    return apply


def _strided(item: ProgramInput, axis: int, dim: int, count: int) -> tuple[Placement, ...]:
    placements = item.placements or ()
    return (*placements[:axis], block_shard(dim, count), *placements[axis + 1 :])


def _placed(name: str, layout: tuple[Placement, ...]) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        draft.set_input_placements(name, layout)

    return apply
