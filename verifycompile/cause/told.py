"""What is told of a change that mends: the line to point at, what is wrong there, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch.fx

from verifycompile.cause.draft import Draft
from verifycompile.cause.moves.move import Move, is_tensor
from verifycompile.cause.origins import beside_others, line_of_detached
from verifycompile.cause.subject import Subject
from verifycompile.diagnostics.finding import Label
from verifycompile.program import SourceLocation
from verifycompile.torch_interface.source_lines.model_lines import (
    caller_of,
    innermost_in_file,
    line_beside,
    model_location_of,
    only_caller_of,
    within_helper,
    written_backward_of,
)
from verifycompile.torch_interface.source_lines.number_lines import line_of_number
from verifycompile.torch_interface.source_lines.source import at_line, lines_of
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.witness.interpreter import descendants

MAX_HINTS = 6
"""What there is to do at more places of one line is not told for each of them."""

_OF_CALLERS = frozenset({"drop", "leave out"})
"""Kinds of changes of what a function does for one caller, and not for others."""
_OF_WRITES = frozenset({"overwritten"})
"""Kinds of changes of what a write does to memory, at the line that writes."""
_OF_NUMBERS = frozenset({
    "argument", "as spec", "bound", "coordinate", "counted from part", "divided by all", "entries", "factor",
    "no factor", "number", "own entry", "own number", "own piece", "own positions", "own slice", "scale", "step",
})  # fmt: skip
"""Kinds of changes of a number that a line computes with, which another line may have made."""
_OF_VARIABLES = frozenset({"entries", "factor"})
"""Kinds of changes of a number that a line takes from a variable, and seldom says itself."""
_OF_BODIES = frozenset({"reduction", "scattered along"})
"""Kinds of changes of what the body of a function says, not the line that calls it."""


@dataclasses.dataclass(frozen=True)
class Cause:
    """One change that belongs to the repair of a program. ``outputs``: those that were wrong without it.

    ``node``: where to point; ``moves``: one, or the same change at each node that one source line made. ``texts``: what
    is wrong, and what to do. ``proved``: the outputs that are proved with all changes where that is not all of them.
    ``unmended``: those that differ then. ``draft``: which of the subject's drafts is changed. ``place``: the line to
    point at where it is another one: of a call of what is right for other callers, or within a helper. ``began``: the
    line behind which a gradient that is summed where it leaves became a partial sum, where that is another line.
    ``made``: where the node's line, which the spec runs too, gets what is wrong: a number, or a gradient's reduction.
    """

    node: torch.fx.Node
    moves: tuple[Move, ...]
    outputs: tuple[str, ...]
    texts: tuple[str, str]
    proved: tuple[str, ...] = ()
    unmended: tuple[str, ...] = ()
    draft: int = 0
    place: SourceLocation | None = None
    began: SourceLocation | None = None
    made: Label | None = None

    @property
    def move(self) -> Move:
        return self.moves[0]


@dataclasses.dataclass(frozen=True)
class Step:
    """What mends some outputs: the change, and the outputs."""

    draft: Draft
    moves: tuple[Move, ...]
    mended: frozenset[str]


class _Made(NamedTuple):
    """The line that made what another line takes; ``is_detached``: it keeps the gradient from what came before."""

    label: Label
    is_detached: bool = False


def cause_of(step: Step, subject: Subject, proved: Subject) -> Cause:
    """The nodes and texts of a cause are those of the program at its own sizes."""
    first = step.moves[0]
    index = subject.drafts().index(step.draft)
    draft, mended = proved.drafts()[index], tuple(sorted(step.mended))
    node = draft.node(first.node) if first.pointed is None else first.pointed
    with within_helper([draft.node(move.node) for move in step.moves]) as place:
        message, hint = _texts(step.moves, draft)
    if place is None:
        place = caller_of(node, _of_same_line(node, step.moves, draft))
        place = only_caller_of(node) if place is None and first.kind[0] in _OF_CALLERS else place
        hint = hint if place is None else f"{hint}, for the call at line {place.line} alone"
    if place is None and (first.pointed is not None or first.kind[0] in _OF_BODIES):
        place = written_backward_of(node)
    if first.kind[0] in _OF_WRITES:
        place = innermost_in_file(node)
    if first.runs_beside:
        place = line_beside(node, draft.node(first.runs_beside))
    made = _made(node, draft, first, subject) if place is None else None
    if made is not None and made.is_detached:
        hint = f"leave out `detach` at line {made.label.location.line}, or {hint}"
    return Cause(node, step.moves, mended, (message, hint), draft=index, place=place, made=made and made.label)


def _made(node: torch.fx.Node, draft: Draft, move: Move, subject: Subject) -> _Made | None:
    if not is_tensor(node):  # a number that the graph computes has the line of what takes it
        later = descendants([node])
        node = next((user for user in node.graph.nodes if user in later and is_tensor(user)), node)
    programs, place = subject.programs(), model_location_of(node)
    if programs is None or place is None:
        return None
    spec = programs[0].graph.graph
    if move.kind[0] == "as spec" and is_backward(node) and subject.values:  # stages detach what they send
        detached = line_of_detached(draft.program.graph.graph, spec)
        if detached is not None:
            return _Made(Label(detached, "no gradient passes what is detached here"), is_detached=True)
    is_number = move.kind[0] in _OF_NUMBERS
    if at_line(place) not in lines_of(spec):
        is_number = move.kind[0] in _OF_VARIABLES  # what else is wrong there is written there
    elif move.kind[0] == "reduce":
        beside = beside_others(node)
        return None if beside is None else _Made(beside)
    # What another line of the spec computes is no number of this one.
    is_number = is_number and (move.kind[0] != "as spec" or move.kind[1] == at_line(place))
    line = line_of_number(node, draft.program.beside) if is_number else None
    # Where the spec does not run the line, it may be that another variable or attribute was meant.
    is_chosen = line is not None and line.function in (place.function, "__init__")
    if is_chosen and move.kind[0] != "entries" and at_line(place) not in lines_of(spec):
        return None
    text = f"the number that line {place.line} computes with is made here"
    return None if line is None else _Made(Label(line, text))


def _texts(moves: tuple[Move, ...], draft: Draft) -> tuple[str, str]:
    """Message and hint of the same change at several nodes: the first message, and what there is to do at each."""
    first = moves[0]
    if len(moves) > 1 and first.texts_of_line is not None:
        return first.texts_of_line(draft)
    texts = [move.texts(draft) for move in moves]
    hints = list(dict.fromkeys(hint for _, hint in texts))
    more = len(hints) - MAX_HINTS
    told = [*hints[:MAX_HINTS], f"and so at {more} more {'place' if more == 1 else 'places'}"] if more > 0 else hints
    return texts[0][0], "; ".join(told)


def _of_same_line(node: torch.fx.Node, moves: Collection[Move], draft: Draft) -> Iterator[torch.fx.Node]:
    """The other calls of one operator that one line makes, which no move changes."""
    changed, place = {move.node for move in moves}, model_location_of(node)
    for other in draft.program.graph.graph.nodes if place is not None else ():
        if other.target == node.target and other.name not in changed and is_backward(other) == is_backward(node):
            own = model_location_of(other)
            if own is not None and place is not None and at_line(own) == at_line(place):
                yield other
