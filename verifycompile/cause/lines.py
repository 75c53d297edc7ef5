"""The lines of changes: the same change of all that one source line made is one change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.move import Move
from verifycompile.program import OutputKind
from verifycompile.torch_interface.gradient_marks import noted_owner
from verifycompile.torch_interface.model_lines import model_location_of
from verifycompile.torch_interface.value_names import is_backward

Change = tuple[Draft, tuple[Move, ...]]


def by_line(moves: Iterable[Move], draft: Draft) -> Iterator[tuple[Move, ...]]:
    """Each move; then, for each line that made several nodes, the same move at all of them."""
    lines: dict[object, list[Move]] = {}
    for move in moves:
        lines.setdefault(line_of(move, draft), []).append(move)
        yield (move,)
    for line, same in lines.items():
        nearest = {move.node: move for move in reversed(same)}
        if line is not None and len(nearest) > 1:
            yield tuple(nearest[name] for name in dict.fromkeys(move.node for move in same))


def line_of(move: Move, draft: Draft) -> object:
    """What changes of one line have in common; None for one that is told by itself."""
    node = draft.node(move.node)
    place = model_location_of(node)
    # Gradients that lack a reduction are told one by one, as those that lack it where they leave the program.
    if place is None or move.is_late or (move.kind[0] == "reduce" and _becomes_a_gradient(node, draft)):
        return None
    # A backward pass makes the gradients of parameters by whatever operators it takes.
    target = "" if noted_owner(node) else str(node.target)
    return place.file, place.line, target, move.kind, is_backward(node)


def _becomes_a_gradient(node: torch.fx.Node, draft: Draft) -> bool:
    """Whether nothing but one gradient that leaves the program is computed from a value."""
    gradients = {output.node for output in draft.program.outputs if output.kind is OutputKind.GRADIENT}
    while node not in gradients and len(node.users) == 1:
        (node,) = node.users
    return node in gradients
