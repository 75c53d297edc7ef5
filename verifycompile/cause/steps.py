"""Moves of where a rank's part begins: at multiples of its coordinate, in steps of another length."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch.fx

from verifycompile.cause.draft import Draft, symbol_of
from verifycompile.cause.move import Move, Scene, is_tensor, shape_of


def other_steps(scene: Scene) -> Iterator[Move]:
    """Each multiple of the rank's coordinate with the length of a dimension in the place of its factor."""
    lengths = _lengths(scene)
    for node in scene.order:
        coordinate, step = _multiple(node)
        symbol = None if coordinate is None else symbol_of(coordinate)
        axis = None if symbol is None else scene.draft.program.coordinates.get(symbol)
        if axis is None:
            continue
        over = scene.names((axis,))
        yield from (_in_steps(node, over, *place) for length, place in lengths.items() if length != step)


def _lengths(scene: Scene) -> dict[int, tuple[str, int]]:
    """The sizes of dimensions above 1, each with a node and a dimension that have it."""
    found: dict[int, tuple[str, int]] = {}
    for node in scene.order:
        for dim, size in enumerate(shape_of(node)) if is_tensor(node) else ():
            if isinstance(size, int) and size > 1:
                found.setdefault(size, (node.name, dim))
    return found


def _multiple(node: torch.fx.Node) -> tuple[torch.fx.Node | None, int]:
    """The node and the number that a number is the product of."""
    if node.op != "call_function" or node.target is not operator.mul or is_tensor(node) or len(node.args) != 2:
        return None, 0
    first, second = node.args if isinstance(node.args[0], torch.fx.Node) else reversed(node.args)
    return (first, second) if isinstance(first, torch.fx.Node) and isinstance(second, int) else (None, 0)


def _in_steps(node: torch.fx.Node, over: str, name: str, dim: int) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(node.name)
        coordinate, _ = _multiple(own)
        draft.redirect(own, draft.number(own, operator.mul, (coordinate, shape_of(draft.node(name))[dim])))

    def texts(draft: Draft) -> tuple[str, str]:
        _, step = _multiple(draft.node(node.name))
        length = shape_of(draft.node(name))[dim]
        message = (
            f"a rank's part begins at its coordinate on {over} times {step}, where the parts have {length} entries"
        )
        return message, f"begin at the rank's coordinate on {over} times {length}, not times {step}"

    return Move(("step", name, dim), node.name, "VC117", texts, apply)
