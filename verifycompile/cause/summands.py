"""Where a sum over ranks that mends a program belongs: behind the first value of which it does."""

from __future__ import annotations

import dataclasses
from typing import cast

import torch.fx

from verifycompile.cause.changed import Changed, wanted_of
from verifycompile.cause.moves.collectives import contracts, summed
from verifycompile.cause.moves.kinds import missing
from verifycompile.cause.moves.move import is_floating
from verifycompile.cause.origins import first_summand, line_of_own
from verifycompile.cause.told import Cause, Step
from verifycompile.cause.trial import Outcome, Trial
from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.witness.interpreter import ancestors

MAX_SUMMANDS = 24
"""Of the values before one whose sum over ranks mends the program, so many are tried."""


def at_first_summand(changed: Changed, trial: Trial, outcome: Outcome, cause: Cause) -> Cause:
    """The sum over ranks that mends the program, as that of the first value of which it does."""
    draft, sum_of = changed.subject.drafts()[cause.draft], cause.move.kind
    node = draft.node(cause.move.node)
    is_sum = sum_of[:2] == ("reduce", "sum") and len(cause.moves) == 1 and not cause.move.is_late
    # The sum over a dimension of which each rank has a part is where a partial sum begins.
    if not is_sum or contracts(node) or is_backward(node) or not changed.subject.values or changed.over:
        return cause
    before = ancestors(node.all_input_nodes)
    changes = changed.moves(trial, outcome, wanted_of(outcome), missing)
    same = {moves[0].node: moves for _, moves in changes if len(moves) == 1 and moves[0].kind == sum_of}
    nearest = [value for value in reversed(draft.nodes.values()) if value in before and value.name in same]
    found = cause.moves
    for value in nearest[:MAX_SUMMANDS]:
        if not changed.over and changed.mend(trial, outcome, [(draft, same[value.name])], is_proved=False):
            found = same[value.name]
    is_same = model_location_of(draft.node(found[0].node)) == model_location_of(node)
    if is_same or not changed.mend(trial, outcome, [(draft, found)]):
        return cause
    return changed.cause(Step(draft, found, frozenset(cause.outputs)))


def with_origin(changed: Changed, trial: Trial, outcome: Outcome, cause: Cause, *, is_alone: bool) -> Cause:
    """The cause with the line behind which a gradient that leaves as a partial sum became one, and with a reduction
    there as a help, where that is proved too.
    """
    first, draft = cause.move, changed.subject.drafts()[cause.draft]
    is_sum = first.is_late and first.kind[:2] == ("reduce", "sum")
    # Where a layout is declared, as of a DTensor, the line that leaves it says how its gradient comes back.
    name = next(iter(cause.outputs), "").partition(".")[2]
    entries = [item for item in draft.program.inputs if item.name == name]
    is_declared = any(item.placements is not None and not item.assumed for item in entries)
    if not is_sum or is_declared or not changed.subject.values or changed.over:
        return cause

    axes = cast("tuple[int, ...]", first.kind[2])

    def mends(node: torch.fx.Node) -> bool:
        if changed.over or not is_floating(node) or not changed.apply(draft, (summed(node, axes),)):
            return False
        after = changed.outcome(trial, outcome, frozenset(cause.outputs))
        changed.undo()
        return after is not None and after.right >= set(cause.outputs)

    origin = first_summand(draft.node(first.node), mends)
    began = line_of_own(changed.proved.drafts()[cause.draft].node(origin.name), cause.node, trial.spec)
    message, hint = cause.texts
    if began is not None and is_alone and changed.apply(draft, (summed(origin, axes),)):
        over = " and ".join(f"`{changed.subject.mesh.axes[axis].name}`" for axis in axes)
        there = f"all-reduce the gradient that line {began.line} computes over {over} (sum) in its backward pass"
        hint = f"{there}; or {hint}" if changed.is_proved() else hint
        changed.undo()
    return dataclasses.replace(cause, began=began, texts=(message, hint))
