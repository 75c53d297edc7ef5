"""Moves that add what other turns of a loop compute: micro-batches of which a sum has some alone.

Of a sum that is assigned in the place of being added to, the graph has the last turn alone. What it lacks is computed
again as that turn does, of the pieces, of the messages and of what else each turn makes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.fx

from verifycompile.cause.draft import Draft, DraftError
from verifycompile.cause.moves.move import CUTS, Move, Scene, computed, is_floating, is_tensor
from verifycompile.cause.moves.same_calls import Lines
from verifycompile.torch_interface.source_lines.model_lines import is_collective
from verifycompile.witness.interpreter import ancestors, descendants

aten = torch.ops.aten

_MOST_STEPS = 200
"""A turn of more calls is not computed again."""
_MOST_TURNS = 16


@dataclasses.dataclass(frozen=True)
class _Loop:
    """``turns``: how many; ``of_nodes``: of which turns a value is computed; ``wholes``: what is cut into a piece for
    each turn.
    """

    lines: Lines
    turns: int
    of_nodes: Mapping[torch.fx.Node, frozenset[int]]
    wholes: frozenset[torch.fx.Node]

    def is_piece(self, node: torch.fx.Node) -> bool:
        return node.target is operator.getitem and node.args[0] in self.wholes


def lost_turns(scene: Scene) -> Iterator[Move]:
    """Each value that is computed of some turns of a loop, as the sum over all turns."""
    lines = Lines(scene.draft.program.graph.graph.nodes, forward=False)
    for loop in _loops(scene, lines):
        found = [node for node in reversed(scene.calls) if computed(node) and is_floating(node)]
        found = [node for node in found if 0 < len(loop.of_nodes.get(node, ())) < loop.turns]
        # What is communicated at last is the sum.
        communicated = descendants(list(filter(is_collective, found))[:1])
        for value in sorted(found, key=lambda node: node in communicated):
            own = loop.of_nodes[value]
            is_once = len(own) == 1 and len(lines.same(value, lines)) <= 1
            is_sum = value.target is aten.add.Tensor and len(own) > 1
            users = [user for user in value.users if user.op != "output"]
            if (is_once or is_sum) and not any(loop.of_nodes.get(user, own) > own for user in users):
                yield _added(scene, value, loop)


def _loops(scene: Scene, lines: Lines) -> Iterator[_Loop]:
    """The loops over pieces of tensors, or over messages that are received."""
    starts: dict[int, dict[torch.fx.Node, frozenset[int]]] = {}
    wholes: dict[int, set[torch.fx.Node]] = {}
    for node in scene.draft.program.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.all_input_nodes[0].target in CUTS:
            whole = node.all_input_nodes[0]
            wholes.setdefault(len(whole.meta["val"]), set()).add(whole)
            starts.setdefault(len(whole.meta["val"]), {})[node] = frozenset((int(node.args[1]),))
        if str(node.target).split(".")[1:2] == ["irecv"]:
            same = lines.same(node, lines)
            starts.setdefault(len(same), {})[node] = frozenset((same.index(node),))
    for turns, of_nodes in starts.items():
        if not 1 < turns <= _MOST_TURNS:
            continue
        for node in scene.draft.program.graph.graph.nodes:
            operands = [of_nodes[operand] for operand in node.all_input_nodes if operand in of_nodes]
            if node not in of_nodes and operands:
                of_nodes[node] = frozenset[int]().union(*operands)
        yield _Loop(lines, turns, of_nodes, frozenset(wholes.get(turns, ())))


def _summands(value: torch.fx.Node) -> list[torch.fx.Node]:
    """What is added up to a value."""
    found = [value]
    for node in found:
        if node.target is aten.add.Tensor:
            found += [operand for operand in node.all_input_nodes if operand not in found]
    return [node for node in found if node.target is not aten.add.Tensor]


def _added(scene: Scene, value: torch.fx.Node, loop: _Loop) -> Move:
    last = max(_summands(value), key=lambda node: max(loop.of_nodes.get(node, {-1})))
    own = loop.of_nodes[value]

    def apply(draft: Draft) -> None:
        total = place = draft.node(value.name)
        users = list(total.users)
        lacking: list[torch.fx.Node] = []
        for turn in sorted(set(range(loop.turns)) - own):
            place = _of_turn(draft, last, loop, turn, place)
            lacking.append(place)
        result = total
        for other in lacking:
            place = result = draft.insert(place, aten.add.Tensor, (result, other), total.meta["val"])
        draft.redirect(total, result, users)
        draft.redirect_outputs(total, result)

    def texts(_: Draft) -> tuple[str, str]:
        found = scene.value(value)
        kept = " and ".join(str(turn + 1) for turn in sorted(own))
        of = "turn" if len(own) == 1 else "turns"
        message = f"{found} is kept of {of} {kept} of {loop.turns} alone"
        return message, f"add up {found} of all {loop.turns} turns at {scene.line(value)}"

    return Move(("lost turns",), value.name, "VC119", texts, apply)


def _of_turn(draft: Draft, value: torch.fx.Node, loop: _Loop, turn: int, place: torch.fx.Node) -> torch.fx.Node:
    """What another turn has, or would have, in the place of a value of one turn."""
    (own,) = loop.of_nodes[value]
    needed = ancestors([value])
    steps = [node for node in value.graph.nodes if node in needed and node in loop.of_nodes]
    if len(steps) > _MOST_STEPS:
        raise DraftError("a long turn")
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    there: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in steps:
        same = loop.lines.same(node, loop.lines)
        times, rest = divmod(len(same), loop.turns)
        if times and not rest and is_tensor(node):
            other = same[turn * times + same.index(node) % times]
            if loop.of_nodes.get(other) == frozenset((turn,)):
                there[node] = draft.node(other.name)
    order = {node: number for number, node in enumerate(draft.program.graph.graph.nodes)}
    place = max((place, *there.values()), key=order.__getitem__)

    def taken(operand: torch.fx.Node) -> torch.fx.Node:
        return there.get(operand) or made.get(operand) or draft.node(operand.name)

    for step in _not_there(value, steps, there):
        if loop.of_nodes[step] != frozenset((own,)):
            raise DraftError("a value of several turns")
        args = (step.args[0], turn) if loop.is_piece(step) else step.args
        value_there = draft.insert(place, step.target, torch.fx.map_arg(args, taken), step.meta["val"])
        draft.set_arguments(value_there, value_there.args, torch.fx.map_arg(step.kwargs, taken))
        place = made[step] = value_there
    return taken(value)


def _not_there(
    value: torch.fx.Node, steps: Sequence[torch.fx.Node], there: Mapping[torch.fx.Node, torch.fx.Node]
) -> list[torch.fx.Node]:
    """The calls that lead from what another turn has to a value."""
    needed, pending = set[torch.fx.Node](), [value]
    while pending:
        node = pending.pop()
        if node in steps and node not in there and node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    return [node for node in steps if node in needed]
