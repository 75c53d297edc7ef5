"""The lines of changes: the same change of all that one source line made is one change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move
from verifycompile.program import OutputKind, SourceLocation
from verifycompile.torch_interface.source_lines.model_lines import is_made_by_autograd, model_location_of
from verifycompile.torch_interface.source_lines.source import at_line, frames_of
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.torch_interface.training_step.gradient_marks import noted_owner

Change = tuple[Draft, tuple[Move, ...]]

_ALONE = 2
"""Of the nodes of one line, those at which a move is tried by itself at first."""


def by_line(moves: Iterable[Move], draft: Draft) -> Iterator[tuple[Move, ...]]:
    """Moves one by one, and for each line that made several nodes the same move at all of them.

    A line that runs in every layer is wrong in every layer, more often than in one: of many nodes of a line the others
    are tried by themselves behind all of them together. What one expression of the line made is tried before the line.
    """
    lines: dict[object, dict[str, Move]] = {}
    parts: dict[object, dict[object, dict[str, Move]]] = {}
    later: list[Move] = []
    for move in moves:
        place = _place(move, draft)
        line = _line_at(place, move, draft)
        nodes = lines.setdefault(line, {})
        nodes.setdefault(move.node, move)
        if line is None or len(nodes) <= _ALONE:
            yield from () if move.is_of_others else ((move,),)
        elif not move.is_of_others:
            later.append(move)
        calls = tuple(map(at_line, frames_of(draft.node(move.node))))  # of a helper that several lines call
        for part in (None if place is None else place.column, _operands_of(move, draft), calls):
            parts.setdefault(line, {}).setdefault(part, {}).setdefault(move.node, move)
    for line, nodes in lines.items():
        together = {tuple(group): tuple(group.values()) for group in (*parts[line].values(), nodes)}
        yield from (group for group in together.values() if line is not None and len(group) > 1)
    for move in later:
        yield (move,)


def _operands_of(move: Move, draft: Draft) -> tuple[str, ...]:
    """By what operators the operands of a move's node are computed: in a backward pass, what is derived of what."""
    return tuple(
        str(operand.target) for operand in draft.node(move.node).all_input_nodes if operand.op != "placeholder"
    )


def _parts_of(moves: Sequence[Move], draft: Draft) -> list[object]:
    """What the same change of several graphs has in common: the line and the expressions of it, or the operands.

    What autograd computes has the line that called for the backward pass, which is another one in each graph.
    """
    nodes = [draft.node(move.node) for move in moves]
    is_derived = all(map(is_made_by_autograd, nodes)) and moves[0].kind[0] == "reduce"
    line = _line_of(moves[0], draft)
    if line is None:
        return []
    line = str(nodes[0].target) if is_derived else line
    places = [_place(move, draft) for move in moves]
    columns = frozenset(None if place is None else place.column for place in places)
    operands = {_operands_of(move, draft) for move in moves}
    found: list[object] = [] if is_derived else [(line, columns)]
    return found + ([(line, *operands)] if len(operands) == 1 else [])


def _line_of(move: Move, draft: Draft) -> object:
    """What changes of one line have in common; None for one that is told by itself."""
    return _line_at(_place(move, draft), move, draft)


def _line_at(place: SourceLocation | None, move: Move, draft: Draft) -> object:
    node = draft.node(move.node)
    # Gradients that lack a reduction are told one by one, as those that lack it where they leave the program.
    if place is None or move.is_late or (move.kind[0] == "reduce" and _becomes_a_gradient(node, draft)):
        return None
    # A backward pass makes the gradients of parameters by whatever operators it takes; inputs have names for targets.
    target = "" if noted_owner(node) or node.op == "placeholder" else str(node.target)
    return *at_line(place), target, move.kind, is_backward(node)


def _place(move: Move, draft: Draft) -> SourceLocation | None:
    """Of an input that of the first call that reads it: one line of the source reads the parameters of all layers."""
    node = draft.node(move.node)
    return model_location_of(next(iter(node.users), node) if node.op == "placeholder" else node)


def _becomes_a_gradient(node: torch.fx.Node, draft: Draft) -> bool:
    """Whether nothing but one gradient that leaves the program is computed from a value."""
    gradients = {output.node for output in draft.program.outputs if output.kind is OutputKind.GRADIENT}
    while node not in gradients and len(node.users) == 1:
        (node,) = node.users
    return node in gradients


def of_all_graphs(
    changes: Iterable[Change], places: Callable[[Sequence[Move], Draft], Iterable[object]], least: int = 1
) -> list[list[Change]]:
    """The same changes of one place in ``least`` graphs; of several in one graph the last of those at most nodes."""
    found: dict[object, dict[int, Change]] = {}
    for draft, moves in changes:
        for place in places(moves, draft):
            of_place = found.setdefault((place, moves[0].kind), {})
            if len(moves) >= len(of_place.get(id(draft), (draft, ()))[1]):
                of_place[id(draft)] = draft, moves
    alike = [list(of_place.values()) for of_place in found.values() if len(of_place) >= least]
    several = {tuple((id(draft), moves) for draft, moves in together): together for together in alike}
    return sorted(several.values(), key=len, reverse=True)


def of_line(moves: Sequence[Move], draft: Draft) -> list[object]:
    """The line of a change and its expressions, and the outputs that lack a sum."""
    outputs = draft.program.outputs if moves[0].kind[0] == "reduce" else ()
    returned: list[object] = [output.name for output in outputs if output.node.name == moves[0].node]
    return [*returned, *_parts_of(moves, draft)]


def in_graph(moves: Sequence[Move], draft: Draft) -> list[object]:
    """What a line that begins a backward pass is for: in several graphs it is another one."""
    target = str(draft.node(moves[0].node).target)
    operands = {_operands_of(move, draft) for move in moves}
    return [target, (target, *operands)] if len(operands) == 1 else [target]
