"""What follows from a value that has another size now: the sizes that calls are given, forward and backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.distributed.tensor.placement_types import Replicate

from verifycompile.cause.draft import Draft, DraftError, Grown, called
from verifycompile.cause.moves.move import is_tensor, shape_of
from verifycompile.cause.moves.whole_dimensions import own_part
from verifycompile.program import OutputKind, ProgramOutput
from verifycompile.witness.inputs import tangent_inputs
from verifycompile.witness.interpreter import descendants

aten = torch.ops.aten

_FILLED = (aten.expand.default, aten.full.default, aten.ones.default, aten.zeros.default)
"""Calls whose result may be of one number, and of any size."""

Shape = tuple[Any, ...]


class Growth:
    """Lets what depends on values of other sizes have the sizes that follow, up to where it meets a rank's part.

    ``axis``: the mesh axis whose ranks have the parts; None where no part may be taken. ``of_forward``: gradients stay
    what they were, of the ranks' parts. ``cut``: the names of the values of which the rank's part is taken;
    ``returned``: those of outputs of which it is.
    """

    def __init__(self, axis: int | None, *, of_forward: bool = False) -> None:
        self._axis, self._of_forward = axis, of_forward
        self._gradients: frozenset[torch.fx.Node] = frozenset()
        self._sizes: dict[Shape, Shape] = {}
        """The shapes of values that have others now, with those."""
        self._merged: dict[Shape, Shape] = {}
        """Neighbouring sizes that a view has merged, with what they are now."""
        self.cut: dict[str, None] = {}
        self.returned: list[str] = []

    def follow(self, draft: Draft, wholes: Grown) -> None:
        """Changes all that depends on ``wholes``, given with what torch recorded of them before."""
        for known in (self.cut, self.returned, self._sizes, self._merged):
            known.clear()
        tangents = {name: entry.node for name, entry in tangent_inputs(draft.program).items()}
        self._gradients = frozenset(descendants(tangents.values()))
        adapt = functools.partial(self._adapt, draft)
        grown = draft.record_again(wholes=wholes, adapt=adapt, without=self._gradients)
        for output in [item for item in draft.program.outputs if item.node in grown and self._is_whole(item)]:
            if (tangent := tangents.get(output.name)) is not None:
                grown[tangent] = tangent.meta["val"]
                draft.record(tangent, tangent.meta["val"].new_empty(shape_of(output.node)))
        forward = {node for node in draft.nodes.values() if node not in self._gradients}
        grown = draft.record_again(wholes=grown, adapt=adapt, without=forward)
        for output in [item for item in draft.program.outputs if item.node in grown and not self._is_whole(item)]:
            part = self._own_part(draft, output.node, tuple(grown[output.node].shape))
            draft.redirect_outputs(output.node, part, {output.name})
            self.returned += [output.name] if output.kind is OutputKind.VALUE else []

    def _is_whole(self, output: ProgramOutput) -> bool:
        """Whether what is returned is as wide as it comes, and with it the gradient that comes back."""
        if self._axis is None or output.placements is None:
            return self._axis is None
        return output.kind is OutputKind.VALUE and isinstance(output.placements[self._axis], Replicate)

    def _own_part(self, draft: Draft, value: torch.fx.Node, shape: Shape) -> torch.fx.Node:
        if self._axis is None:
            raise DraftError("a value of another size beside it")
        return own_part(draft, value, value, self._axis, shape)

    def _adapt(self, draft: Draft, node: torch.fx.Node, grown: Grown) -> None:
        """Changes the arguments of a call that takes wider values."""
        wide = [operand for operand in node.all_input_nodes if operand in grown and is_tensor(operand)]
        if self._of_forward and node in self._gradients:
            for operand in wide:
                draft.redirect(operand, self._own_part(draft, operand, tuple(grown[operand].shape)), [node])
            return
        sizes = self._sizes
        sizes.update({tuple(grown[operand].shape): shape_of(operand) for operand in wide})
        for other in node.all_input_nodes:
            if other in grown or not is_tensor(other) or len(shape_of(other)) < 2 or shape_of(other) not in sizes:
                continue
            if other.target in _FILLED and all(len(shape_of(filled)) == 0 for filled in other.all_input_nodes):
                new = draft.insert(node, other.target, _with_sizes(other.args, sizes.get), before=True)
                new.kwargs = other.kwargs
                new.meta["val"] = called(new)
                draft.redirect(other, new, [node])
                continue
            for operand in [operand for operand in wide if tuple(grown[operand].shape) == shape_of(other)]:
                draft.redirect(operand, self._own_part(draft, operand, shape_of(other)), [node])
                self.cut[operand.name] = None
                wide.remove(operand)
        if len(wide) == 1:
            was, now = tuple(grown[wide[0]].shape), shape_of(wide[0])
            arguments = _with_sizes(node.args, lambda own: sizes.get(own) or self._view(own, was, now))
            draft.set_arguments(node, arguments)

    def _view(self, sizes: Shape, was: Shape, now: Shape) -> Shape | None:
        """The sizes of a view of what has the shape ``now``, in the place of ``was``; None for what are none."""
        if math.prod(sizes) != math.prod(was):
            return None
        kept = [(before, after) for before, after in zip(was, now, strict=True) if (before, after) != (1, 1)]
        if any(before == 1 for before, _ in kept):
            return self._cut(sizes, was, now)
        found = iter(self._cut(tuple(size for size in sizes if size != 1), *map(tuple, zip(*kept, strict=True))))
        return tuple(size if size == 1 else next(found) for size in sizes)

    def _cut(self, sizes: Shape, was: Shape, now: Shape) -> Shape:
        """The sizes of a view whose dimensions are those of ``was``, merged and cut."""
        found: list[Any] = []
        first = start = 0
        while first < len(was) or start < len(sizes):
            last, stop = min(first + 1, len(was)), min(start + 1, len(sizes))
            while (left := math.prod(was[first:last])) != (right := math.prod(sizes[start:stop])):
                last, stop = (last + 1, stop) if left < right else (last, stop + 1)
            before, after, own = was[first:last], now[first:last], sizes[start:stop]
            if len(own) == 1:
                self._merged[before] = after
                found.append(math.prod(after))
            elif before != after and own not in self._merged:
                raise DraftError("a view of which it is not known where it grows")
            else:
                found += own if before == after else self._merged[own]
            first, start = last, stop
        return tuple(found)


def _with_sizes(arguments: Sequence[Any], changed: Callable[[Shape], Shape | None]) -> list[Any]:
    """Arguments of a call, with other sizes in the place of those that are lists of numbers."""
    return [
        list(changed(tuple(item)) or item)
        if isinstance(item, (list, tuple)) and item and all(isinstance(size, int) for size in item)
        else item
        for item in arguments
    ]
