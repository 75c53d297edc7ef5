"""Moves that add to each value what the spec adds there: a residual that every layer, or every stage, leaves out.

Where one is lost in each layer no value behind the first is the spec's, so that numbers show the first alone. What is
computed of what says where the others are: the spec adds to a value what it is computed of, by some calls in a row.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import Move, Scene, derives, is_floating, shape_of
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.ranks.rank_values import RANK_NAMESPACES, namespace
from verifycompile.torch_interface.source_lines.value_names import expression_of

aten = torch.ops.aten

LOST_SUM = ("lost sum",)
"""The kind of these moves."""
_MOST_CALLS = 12
"""Calls in a row between the two summands."""
_COPIES = (aten.clone.default, aten.detach.default, aten._to_copy.default, aten._unsafe_view.default)  # noqa: SLF001 - names of operators

_Way = tuple[tuple[object, int], ...]
"""Operators, the last one first, and of each the operand that the next one computes."""


def lost_sums(scene: Scene) -> Iterator[Move]:
    """The sum of each value with what it is computed of as in the spec, which adds the two, where nothing adds them."""
    ways = _ways(scene.spec.graph.graph.nodes)
    starts = {way[0][0] for way in ways}
    for node in scene.calls if ways else ():
        for way in ways if _called(node) in starts else ():
            found = _summands(node, way)
            if found is not None:
                yield _added(scene, *found, node, way)


def _ways(nodes: Iterable[torch.fx.Node]) -> dict[_Way, None]:
    """The calls in a row that lead from one summand to the other, of each sum of the spec."""
    found: dict[_Way, None] = {}
    for node in nodes:
        if node.target is aten.add.Tensor and len(node.all_input_nodes) == 2 and is_floating(node):
            first, last = map(behind_moves, node.all_input_nodes)
            way = _way(last, first) or _way(first, last)
            if way:
                found[way] = None
    return found


def _way(last: torch.fx.Node, first: torch.fx.Node) -> _Way:
    """The shortest way back from one value to another one; () where there is none of a few calls."""
    ways: dict[torch.fx.Node, _Way] = {last: ()}
    pending = [last]
    for node in pending:
        for place, operand in enumerate(node.all_input_nodes if len(ways[node]) < _MOST_CALLS else ()):
            source = behind_moves(operand)
            if source not in ways:
                ways[source] = (*ways[node], (_called(node), place))
                pending.append(source)
            if source is first:
                return ways[source]
    return ()


def _at_end(node: torch.fx.Node, way: _Way) -> list[torch.fx.Node]:
    """What is read at the end of a way back from a value, what that is a view or copy of, and so on."""
    found: list[torch.fx.Node] = []
    for called, place in way:
        if _called(node) != called or place >= len(node.all_input_nodes):
            return []
        found = [node.all_input_nodes[place]]
        while _only_moves(found[-1]) and found[-1].all_input_nodes:
            found.append(found[-1].all_input_nodes[0])
        node = found[-1]
    return found


def _of_shape(read: Iterable[torch.fx.Node], value: torch.fx.Node) -> torch.fx.Node | None:
    """Of what is read the last that has the shape of a value, behind the last communication of one that has it."""
    found = None
    for node in read:
        if is_floating(node) and shape_of(node) == shape_of(value):
            found = node
        if found is not None and _communicates(node):
            break
    return found


def _called(node: torch.fx.Node) -> object:
    """The operator, or which of several results is taken."""
    return (node.target, node.args[1]) if node.target is operator.getitem else node.target


def behind_moves(node: torch.fx.Node) -> torch.fx.Node:
    """What a value is a view, a copy, or the result of a communication of."""
    while _only_moves(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _only_moves(node: torch.fx.Node) -> bool:
    return node.target in _COPIES or is_view(node.target) or _communicates(node)


def _communicates(node: torch.fx.Node) -> bool:
    return namespace(node) in RANK_NAMESPACES


def _summands(node: torch.fx.Node, way: _Way) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """What a value is, or is a summand of, behind its last communication, and of the same shape what it is computed of.

    None where there is none, and where the two are added.
    """
    read = _at_end(node, way)
    values: list[list[torch.fx.Node]] = [[]]
    while read:
        values += [[]] if _communicates(node) else []
        values[-1].append(node)
        sums = [user for user in node.users if user.target is aten.add.Tensor]
        if any(behind_moves(operand) is read[-1] for user in sums for operand in user.all_input_nodes):
            return None
        (user, *others) = (*node.users, node)
        if len(others) != 1 or not (user in sums or _only_moves(user)):
            break
        node = user
    for value in itertools.chain.from_iterable(reversed(values)):
        source = _of_shape(read, value) if is_floating(value) else None
        if source is not None:
            return value, source
    return None


def _added(scene: Scene, value: torch.fx.Node, source: torch.fx.Node, first: torch.fx.Node, way: _Way) -> Move:
    def apply(draft: Draft) -> None:
        own = draft.node(value.name)
        other = _of_shape(_at_end(draft.node(first.name), way), own)
        if other is None:
            raise DraftError("another way")
        users = [user for user in own.users if not derives(user, own)]
        total = draft.insert(own, aten.add.Tensor, (own, other))
        draft.redirect(own, total, users)
        draft.redirect_outputs(own, total)

    def texts(_: Draft) -> tuple[str, str]:
        found, other = scene.value(value), scene.value(source)
        message = f"{other} is not added to {found}, as it is in the spec"
        return message, f"add {other} to {found} after {scene.line(value)}"

    def texts_of_line(_: Draft) -> tuple[str, str]:
        found, other, line = expression_of(value), scene.value(source), scene.line(value)
        message = f"each time that {line} computes {found}, what it is computed of is not added, as it is in the spec"
        return message, f"add to {found} at {line} what it is computed of, each time ({other} the first time)"

    return Move(LOST_SUM, value.name, "VC108", texts, apply, texts_of_line=texts_of_line)
