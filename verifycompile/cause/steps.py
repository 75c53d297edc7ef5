"""Moves of where a rank's part begins: at multiples of its coordinate, in steps of another length."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch.fx

from verifycompile.cause.draft import Draft, symbol_of
from verifycompile.cause.move import Move, Scene, is_tensor, shape_of


def other_steps(scene: Scene) -> Iterator[Move]:
    """Each multiple of the rank's coordinate with the length of a dimension in the place of its factor, then all of one
    coordinate and factor at once, with what is added to them to tell where the part ends.
    """
    lengths = _lengths(scene)
    same: dict[tuple[int, int], list[torch.fx.Node]] = {}
    for node in scene.order:
        coordinate, step = _multiple(node)
        symbol = None if coordinate is None else symbol_of(coordinate)
        axis = None if symbol is None else scene.draft.program.coordinates.get(symbol)
        if axis is not None:
            same.setdefault((axis, step), []).append(node)
    for (axis, step), nodes in same.items():
        for chosen in [*([node] for node in nodes), nodes] if len(nodes) > 1 else [nodes]:
            for length, place in lengths.items():
                if length != step:
                    yield _in_steps(chosen, scene.names((axis,)), *place, ends=len(chosen) > 1)


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


def _in_steps(nodes: Sequence[torch.fx.Node], over: str, name: str, dim: int, *, ends: bool) -> Move:
    def apply(draft: Draft) -> None:
        length = shape_of(draft.node(name))[dim]
        for own in [draft.node(node.name) for node in nodes]:
            coordinate, step = _multiple(own)
            last = [user for user in own.users if user.target is operator.add and user.args == (own, step)]
            start = draft.number(own, operator.mul, (coordinate, length))
            for user in last if ends else ():
                draft.redirect(user, draft.number(start, operator.add, (start, length)))
            draft.redirect(own, start)

    def texts(draft: Draft) -> tuple[str, str]:
        _, step = _multiple(draft.node(nodes[0].name))
        length = shape_of(draft.node(name))[dim]
        message = (
            f"a rank's part begins at its coordinate on {over} times {step}, where the parts have {length} entries"
        )
        return message, f"begin at the rank's coordinate on {over} times {length}, not times {step}"

    return Move(("step", name, dim), nodes[0].name, "VC117", texts, apply)
