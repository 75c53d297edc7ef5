"""The nodes that are one call of the source: in each layer, each turn of a loop, and each rank's graph.

What one line calls, in order, is the same for each time that it runs, but for what a backward pass keeps of it.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable

import torch
import torch.fx

from verifycompile.torch_interface.source_lines.model_lines import model_location_of
from verifycompile.torch_interface.source_lines.source import at_line
from verifycompile.torch_interface.source_lines.value_names import is_backward

_KEEPING = (operator.getitem, torch.ops.aten.detach.default)
_MOST_CALLS = 24
"""Calls in a row between a value and what it is computed of."""

Way = tuple[tuple[object, int], ...]
"""From a call back to what it is computed of: operators, and which of their operands is followed."""


class Lines:
    """The calls that each line of the source made, in order; ``forward``: those of the forward pass alone."""

    def __init__(self, nodes: Iterable[torch.fx.Node], *, forward: bool = True) -> None:
        self._calls: dict[tuple[str, int], list[torch.fx.Node]] = {}
        for node in nodes:
            is_told = node.op == "call_function" and node.target not in _KEEPING and not (forward and is_backward(node))
            place = model_location_of(node) if is_told else None
            if place is not None:
                self._calls.setdefault(at_line(place), []).append(node)

    def same(self, node: torch.fx.Node, of: Lines) -> list[torch.fx.Node]:
        """The nodes that are here what ``node`` is in the graph ``of``; () where the line runs in another way.

        Operators that run seldomer than others are left aside, if only those of the others repeat.
        """
        line = next((line for line, calls in of._calls.items() if node in calls), None)
        if line is None:
            return []
        theirs, own = of._calls[line], self._calls.get(line, [])
        counts = collections.Counter(map(_target, theirs))
        alike: list[torch.fx.Node] = []
        for least in sorted(set(counts.values())):
            same, here = ([call for call in calls if counts[call.target] >= least] for calls in (theirs, own))
            pattern = _once(list(map(_target, same)))
            turns = len(same) // len(pattern)
            is_aside = node not in same or len(theirs) - len(same) >= turns > 1
            if is_aside or list(map(_target, here)) != pattern * (len(here) // len(pattern)):
                continue
            found = here[same.index(node) % len(pattern) :: len(pattern)]
            if turns > 1:
                return found
            alike = alike or found
        return alike


def way_to(node: torch.fx.Node, source: torch.fx.Node) -> Way | None:
    """The shortest way from a value back to one that it is computed of; None where there is none of a few calls."""
    ways: dict[torch.fx.Node, Way] = {node: ()}
    pending = [node]
    for own in pending:
        if own is source:
            return ways[own]
        for place, operand in enumerate(own.all_input_nodes if len(ways[own]) < _MOST_CALLS else ()):
            if operand not in ways:
                ways[operand] = (*ways[own], (own.target, place))
                pending.append(operand)
    return None


def at_end(node: torch.fx.Node, way: Way) -> torch.fx.Node | None:
    """What stands at the end of a way back from another value; None where other calls stand on it."""
    for target, place in way:
        if node.target != target or place >= len(node.all_input_nodes):
            return None
        node = node.all_input_nodes[place]
    return node


def _target(node: torch.fx.Node) -> object:
    return node.target


def _once(targets: list[object]) -> list[object]:
    """The shortest pattern of which a list consists."""
    lengths = (length for length in range(1, len(targets) + 1) if len(targets) % length == 0)
    return next(targets[:length] for length in lengths if targets[:length] * (len(targets) // length) == targets)
