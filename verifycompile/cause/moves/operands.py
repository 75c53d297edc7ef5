"""Moves that give a call another operand, or leave it out."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import ARITHMETIC, Move, Scene, are_alike, is_tensor, shape_of, views
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.ranks.rank_values import RANK_NAMESPACES, functional_collectives, namespace
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.value_names import call_name

aten = torch.ops.aten

_COPYING = (aten.copy.default, aten.clone.default, functional_collectives().wait_tensor.default)


def needless_calls(scene: Scene) -> Iterator[Move]:
    """Each call whose result could be one of its operands, left out."""
    for node in reversed(scene.calls):
        if namespace(node) in RANK_NAMESPACES or is_view(node.target):
            continue
        call = node.all_input_nodes[0] if node.target is operator.getitem else node
        for operand in dict.fromkeys(call.all_input_nodes):
            if are_alike(node, operand) or _widens(node, operand):
                texts = functools.partial(_left_out_texts, scene, node, operand)
                numbers = (str(item) for item in node.args if not isinstance(item, torch.fx.Node))
                yield Move(("leave out", *numbers), node.name, "VC108", texts, _left_out(node.name, operand.name))


def _left_out_texts(scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, _: Draft) -> tuple[str, str]:
    found, wanted = scene.value(node), scene.value(operand)
    number = node.args[1] if node.target in (aten.mul.Tensor, aten.div.Tensor) else None
    if isinstance(number, (int, float)):
        what = f"the {'multiplication' if node.target is aten.mul.Tensor else 'division'} by {number:.6g}"
        return f"{what} is none of the spec", f"leave out {what} of {wanted} at {scene.line(node)}"
    if found == wanted:  # both are called by their operator, in an expression that is not known
        call, line = call_name(node), scene.line(node)
        return f"{call} is not needed", f"leave out {call} at {line}, and use {call_name(operand)}, which it takes"
    hint = f"use {wanted} in the place of {found} at {scene.line(node)}"
    return f"{found} is computed where {wanted} is needed", hint


def other_operands(scene: Scene) -> Iterator[Move]:
    """Each operand of a call exchanged for an earlier value of its shape and type, the nearest first.

    Where the call takes a view of something, what is exchanged is what the view looks at.
    """
    order = scene.draft.program.graph.graph.nodes
    position = {node: place for place, node in enumerate(order)}
    values = [node for node in order if is_tensor(node)]
    places = _Places(order)
    for node in scene.order:
        if node.op != "call_function" or node.target is operator.getitem or is_view(node.target):
            continue
        for operand in dict.fromkeys(node.all_input_nodes):
            if not is_tensor(operand):
                continue
            place = node.all_input_nodes.index(operand)
            for depth, looked_at in enumerate(views(operand)):
                earlier = [
                    other for other in values if position[other] < position[node] and are_alike(looked_at, other)
                ]
                for other in sorted(earlier, key=lambda other: abs(position[other] - position[looked_at])):
                    if other is looked_at or _same_value(scene, looked_at, other):
                        continue
                    texts = functools.partial(exchanged_texts, scene, node, looked_at, other)
                    change = _exchanged(node.name, operand.name, depth, other.name)
                    kind = ("operand", place, depth, *places.relative(node, other))
                    yield Move(kind, node.name, "VC108", texts, change)


class _Places:
    """Where values are computed: equal for what an expression computes in several layers, or turns of a loop."""

    def __init__(self, order: Iterable[torch.fx.Node]) -> None:
        self._places: dict[torch.fx.Node, tuple[object, int]] = {}
        self._counts: collections.Counter[object] = collections.Counter()
        for node in order:
            place = model_location_of(node)
            line: object = node.name if place is None else (place.file, place.line, place.column, str(node.target))
            self._places[node] = line, self._counts[line]
            self._counts[line] += 1

    def turn(self, node: torch.fx.Node) -> int:
        """How many calls of the same expression there were before."""
        return self._places[node][1]

    def relative(self, node: torch.fx.Node, other: torch.fx.Node) -> tuple[object, ...]:
        """The expressions of both, and how many turns ``other`` is away from ``node``.

        An expression that is made oftener than the other one is made so often in each turn.
        """
        (own, first), (line, second) = self._places[node], self._places[other]
        times = max(self._counts[own] // self._counts[line], 1), max(self._counts[line] // self._counts[own], 1)
        turns = second // times[1] - first // times[0]
        return first % times[0], line, second % times[1], 0 if isinstance(line, str) else turns


def exchanged_texts(
    scene: Scene, node: torch.fx.Node, operand: torch.fx.Node, other: torch.fx.Node, _: Draft
) -> tuple[str, str]:
    """What is said of a call that takes one value in the place of another one."""
    found, wanted = scene.value(operand), scene.value(other)
    if found == wanted:  # the same line made both
        places = _Places(scene.draft.program.graph.graph.nodes)
        found, wanted = (f"{found} of turn {places.turn(value) + 1}" for value in (operand, other))
    own = scene.value(node)
    taker = scene.line(node) if own in (found, wanted) else own  # a view has the name of what it looks at
    message = f"{taker} takes {found}, where {wanted} is expected"
    return message, f"use {wanted} in the place of {found} at {scene.line(node)}"


def _same_value(scene: Scene, node: torch.fx.Node, other: torch.fx.Node) -> bool:
    first, second = scene.parts(node), scene.parts(other)
    if first is None or second is None:
        return _copied(node) is _copied(other)
    return all(a is b or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _copied(node: torch.fx.Node) -> torch.fx.Node:
    """What a value is a copy of, as what is received is of the message."""
    while node.target in _COPYING:
        node = node.all_input_nodes[-1]
    return node


def _widens(node: torch.fx.Node, operand: torch.fx.Node) -> bool:
    """Whether each element of the result of arithmetic stands where one of the operand is repeated."""
    if node.target not in ARITHMETIC or not is_tensor(operand) or node.meta["val"].dtype != operand.meta["val"].dtype:
        return False
    own, wide = shape_of(operand), shape_of(node)
    return len(own) == len(wide) > 0 and all(size in (1, whole) for size, whole in zip(own, wide, strict=True))


def _left_out(name: str, operand: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, value = draft.node(name), draft.node(operand)
        if shape_of(value) != shape_of(own):
            value = draft.insert(own, aten.expand.default, (value, list(shape_of(own))))
        draft.redirect(own, value)

    return apply


def _exchanged(name: str, operand: str, depth: int, other: str) -> Callable[[Draft], None]:
    def apply(draft: Draft) -> None:
        own, taken = draft.node(name), draft.node(operand)
        value = draft.node(other)
        for view in reversed(views(taken)[:depth]):
            arguments = (value, *view.args[1:])
            value = draft.insert(own, view.target, arguments, view.meta["val"], before=True)
        draft.redirect(taken, value, [own])

    return apply
