"""The lines of changes: the same change of all that one source line made is one change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move
from verifycompile.program import OutputKind, SourceLocation
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
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
    expressions: dict[object, dict[object, dict[str, Move]]] = {}
    later: list[Move] = []
    for move in moves:
        place = _place(move, draft)
        line = _line_at(place, move, draft)
        nodes = lines.setdefault(line, {})
        nodes.setdefault(move.node, move)
        if line is None or len(nodes) <= _ALONE:
            yield (move,)
        else:
            later.append(move)
        column = None if place is None else place.column
        expressions.setdefault(line, {}).setdefault(column, {}).setdefault(move.node, move)
    for line, nodes in lines.items():
        of_line = [*expressions[line].values(), nodes] if len(expressions[line]) > 1 else [nodes]
        for together in of_line if line is not None else ():
            if len(together) > 1:
                yield tuple(together.values())
    for move in later:
        yield (move,)


def line_of(move: Move, draft: Draft) -> object:
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
