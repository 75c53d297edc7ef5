"""Moves of where a rank's part begins: in steps of another length, from rank to rank or from piece to piece."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError, symbol_of
from verifycompile.cause.moves.move import Move, Scene, is_derivative, is_tensor, shape_of
from verifycompile.torch_interface.operators.evaluation import symbolic_expression

aten = torch.ops.aten

_STARTS: dict[Any, int] = {aten.slice.Tensor: 2, aten.slice_backward.default: 3}
"""Where a start stands among the arguments, with the end behind it."""
_STEPPED = 5
"""So many arguments has a slice with a step."""


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


def spread_pieces(scene: Scene) -> Iterator[Move]:
    """The pieces of a tensor that are cut from it in steps of one length, in those in which they lie evenly along the
    dimension: where a whole of q, k and v is cut by the width of a rank's own heads.
    """
    cuts: dict[tuple[Any, Any], list[torch.fx.Node]] = {}
    for node in scene.calls:
        if node.target is aten.slice.Tensor and _STARTS[node.target] + 1 < len(node.args) < _STEPPED:
            cuts.setdefault((node.args[0], node.args[1]), []).append(node)
    for (source, dim), pieces in cuts.items():
        apart = _apart(pieces)
        size: Any = shape_of(source)[dim]
        is_even = apart is not None and isinstance(size, int) and size % len(pieces) == 0
        if is_even and apart != size // len(pieces):
            yield _spread(scene, pieces)


def _apart(pieces: Sequence[torch.fx.Node]) -> int | None:
    """How far pieces begin from one another, where that is one number for all of them."""
    starts = [_number(node.args[2]) for node in pieces]
    found = {last - first for first, last in itertools.pairwise(starts)}
    apart = found.pop() if len(found) == 1 else None
    return int(apart) if apart is not None and apart.is_Integer else None


def _bounds(node: torch.fx.Node) -> list[Any]:
    place = _STARTS[node.target]
    return [_number(argument) for argument in node.args[place : place + 2]]


def _number(value: object) -> Any:
    return sympy.sympify(symbolic_expression(value.meta.get("val")) if isinstance(value, torch.fx.Node) else value)


def _spread(scene: Scene, pieces: Sequence[torch.fx.Node]) -> Move:
    backward = [node for node in scene.draft.program.graph.graph.nodes if node.target is aten.slice_backward.default]
    derivatives = [
        [node for node in backward if is_derivative(node, piece) and _bounds(node) == _bounds(piece)]
        for piece in pieces
    ]

    def steps(draft: Draft) -> tuple[int, int]:
        own = [draft.node(node.name) for node in pieces]
        whole, dim = own[0].all_input_nodes[0], own[0].args[1]
        size: Any = shape_of(whole)[dim]  # pyright: ignore[reportArgumentType, reportCallIssue]  # a number by the schema
        apart = _apart(own)
        if apart is None or size % len(own):
            raise DraftError("pieces that lie in other ways")
        return apart, size // len(own)

    def apply(draft: Draft) -> None:
        apart, wanted = steps(draft)
        for turn, (piece, same) in enumerate(zip(pieces, derivatives, strict=True)):
            for own in [draft.node(node.name) for node in ((piece, *same) if turn else ())]:
                place, arguments = _STARTS[own.target], [*own.args]
                for at in (place, place + 1):
                    arguments[at] = draft.number(own, operator.add, (arguments[at], turn * (wanted - apart)))
                draft.set_arguments(own, arguments)

    def texts(draft: Draft) -> tuple[str, str]:
        apart, wanted = steps(draft)
        whole = scene.value(pieces[0].all_input_nodes[0])
        message = (
            f"the {len(pieces)} pieces of {whole} begin {apart} entries apart, where its parts have {wanted} entries"
        )
        return (
            message,
            f"let the pieces of {whole} begin {wanted} entries apart, not {apart}, at {scene.line(pieces[1])}",
        )

    return Move(("spread", pieces[0].args[1], len(pieces)), pieces[1].name, "VC118", texts, apply)


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
