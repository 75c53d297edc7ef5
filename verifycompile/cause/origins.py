"""Where a gradient became the partial sum as which it leaves the program: the line that lacks a reduction.

A backward pass keeps a sum a sum, so the gradient is right wherever it is reduced from there on. The first such place
is where the ranks' own parts of the model read what all of them hold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.fx

from verifycompile.cause.moves.move import views
from verifycompile.diagnostics.finding import Label
from verifycompile.program import Program, SourceLocation
from verifycompile.torch_interface.source_lines.model_lines import (
    innermost_in_file,
    is_collective,
    model_frame,
    model_location_of,
)
from verifycompile.torch_interface.source_lines.source import at_line, frames_of, lines_of, located
from verifycompile.torch_interface.source_lines.value_names import is_backward
from verifycompile.torch_interface.training_step.gradient_marks import noted_owner

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


def line_of_own(node: torch.fx.Node, user: torch.fx.Node, spec: Program) -> SourceLocation | None:
    """The line that made ``node``, or that calls it where the spec runs it as well: what is wrong is how it is called.
    None where that line was running for ``user`` too, or all is as in the spec.
    """
    shared, frames = lines_of(spec.graph.graph), frames_of(node)
    running = {at_line(frame) for frame in frames_of(user)}
    for position in range(model_frame(node, frames), -1, -1) if frames else ():
        if at_line(frames[position]) in running:
            return None
        if at_line(frames[position]) not in shared:
            return located(node, frames, position)
    return None


def beside_others(gradient: torch.fx.Node) -> Label | None:
    """The one line behind the backward pass that communicates the gradients of other parameters, and not this one."""
    owner, lines, others = noted_owner(gradient), dict[tuple[str, int], SourceLocation](), dict[str, None]()
    for node in gradient.graph.nodes if owner else ():
        place = innermost_in_file(node) if is_collective(node) and not node.meta.get("autograd_backward") else None
        sent = views(node.all_input_nodes[0]) if place is not None else ()
        other = next(filter(None, map(noted_owner, sent)), "")
        if place is not None and other:
            lines[at_line(place)] = place
            others[other] = None
    if len(lines) != 1 or owner in others:
        return None
    more = f" and of {len(others) - 1} more" if len(others) > 1 else ""
    text = f"the gradient of `{next(iter(others))}`{more} is communicated here, that of `{owner}` is not"
    return Label(next(iter(lines.values())), text)


def line_of_detached(graph: torch.fx.Graph, spec: torch.fx.Graph) -> SourceLocation | None:
    """The one line that detaches what the forward pass goes on with, where the spec detaches nothing."""
    if _detached(spec):
        return None
    places = [place for node in _detached(graph) if (place := model_location_of(node)) is not None]
    return places[0] if len({at_line(place) for place in places}) == 1 else None


def _detached(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What is detached for the forward pass; what torch keeps for the backward pass is read by that alone."""
    found = [node for node in graph.nodes if node.target is torch.ops.aten.detach.default and not is_backward(node)]
    return [node for node in found if not all(user in found or is_backward(user) for user in node.users)]
