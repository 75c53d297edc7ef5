"""Where a gradient became the partial sum as which it leaves the program: the line that lacks a reduction.

A backward pass keeps a sum a sum, so the gradient is right wherever it is reduced from there on. The first such place
is where the ranks' own parts of the model read what all of them hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.fx

from verifycompile.program import Program, SourceLocation
from verifycompile.torch_interface.model_lines import model_frame, model_location_of
from verifycompile.torch_interface.source import at_line, frames_of, lines_of, located
from verifycompile.torch_interface.value_names import is_backward

_LONGEST = 60
"""So many steps are followed."""


def first_summand(gradient: torch.fx.Node, mends: Callable[[torch.fx.Node], bool]) -> torch.fx.Node:
    """The earliest node from which on a sum over ranks makes ``gradient`` right; ``mends`` tells it of a node."""
    found = gradient
    for _ in range(_LONGEST):
        operands = [operand for operand in found.all_input_nodes if is_backward(operand)]
        before = next((operand for operand in operands if mends(operand)), None)
        if before is None:
            break
        found = before
    return found


def line_of_own(node: torch.fx.Node, gradient: torch.fx.Node, spec: Program) -> SourceLocation | None:
    """The line whose derivative ``node`` is, or that calls it where the spec runs it as well: what is wrong is how it
    is called. None where that is the line of ``gradient`` too, or all is as in the spec.
    """
    shared, frames, used = lines_of(spec.graph.graph), frames_of(node), model_location_of(gradient)
    for position in range(model_frame(node, frames), -1, -1) if frames else ():
        if used is not None and at_line(frames[position]) == at_line(used):
            return None
        if at_line(frames[position]) not in shared:
            return located(node, frames, position)
    return None
