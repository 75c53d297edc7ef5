"""Which changes are derivatives of others: those in the backward pass of the line at which there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from verifycompile.cause.lines import Change
from verifycompile.cause.moves.lost_sums import LOST_SUM, behind_moves
from verifycompile.cause.moves.move import Move, is_derivative
from verifycompile.cause.told import Cause
from verifycompile.torch_interface.source_lines.model_lines import is_made_by_autograd, written_backward_of
from verifycompile.torch_interface.source_lines.value_names import is_backward

_OF_VALUES = frozenset({"factor", "leave out", LOST_SUM[0], "no factor"})
"""Kinds of changes of a value, which autograd makes in the backward pass as well; reductions it does not make."""


def are_derivatives(change: Change, moves: Sequence[Move]) -> bool:
    """Whether a change is in the backward pass of the line at which there are others, which are applied; where a graph
    does not tell what is backward, whether it is the same change of other nodes.
    """
    draft, own = change
    node, known = draft.node(moves[0].node), {move.node for move in moves}
    names = [move.node for move in own]
    if any(map(is_backward, draft.program.graph.graph.nodes)):
        is_sum = own[0].kind == moves[0].kind == LOST_SUM  # its derivative is where the computation begins
        return all(is_derivative(other, node) or (is_sum and is_backward(other)) for other in map(draft.node, names))
    return own[0].kind == moves[0].kind and known.isdisjoint(names)


def without_derivatives(causes: Collection[Cause]) -> list[Cause]:
    """The causes without those that autograd makes of another one, where no one wrote the backward pass."""
    told = {id(cause): cause for cause in causes}
    for cause in filter(_is_derived, causes):
        same = (other for other in told.values() if other.draft == cause.draft and not _is_derived(other))
        first = next((other for other in same if other.move.kind[0] == cause.move.kind[0]), None)
        if first is not None:
            del told[id(cause)]
            outputs = tuple(dict.fromkeys((*first.outputs, *cause.outputs)))
            joined = dataclasses.replace(first, moves=(*first.moves, *cause.moves), outputs=outputs)
            told = {key: joined if other is first else other for key, other in told.items()}
    return list(told.values())


def _is_derived(cause: Cause) -> bool:
    computed = behind_moves(cause.node)
    is_late = is_backward(computed) or is_made_by_autograd(computed)
    return is_late and cause.move.kind[0] in _OF_VALUES and written_backward_of(computed) is None


def with_derivatives(causes: Collection[Cause]) -> bool:
    """Whether each change that changes gradients in the source comes with one of the backward pass of its line."""
    lacking = [cause.node for cause in causes if cause.move.lacks_derivative]
    return all(any(is_derivative(other.node, node) for other in causes) for node in lacking)
