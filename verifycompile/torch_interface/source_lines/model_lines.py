"""The line of the user's model that a node stands for, where the node was made inside a helper that communicates.

A function that does nothing but call collectives (and copy, cast, cut or join what goes in and out) says nothing about
the fault: all its callers have the same lines. What such a function does is told from the graph: the operators that
were recorded while it ran. It is passed over in favour of the function that calls it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Generator, Iterable, Sequence

import torch
import torch.fx
from torch._ops import OpOverload

from verifycompile.program import SourceLocation
from verifycompile.torch_interface.operators.evaluation import is_view, symbolic_expression
from verifycompile.torch_interface.source_lines.source import MADE_BY, at_line, expression_at, frames_of, located
from verifycompile.torch_interface.source_lines.syntax import syntax_of

_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"})
_PLUMBING = frozenset({
    "_to_copy", "cat", "clone", "contiguous", "copy", "copy_", "detach", "empty", "empty_like", "index_select",
    "lift_fresh_copy", "new_empty", "new_zeros", "pad", "constant_pad_nd", "reshape", "split", "split_with_sizes",
    "stack", "wait_tensor", "zeros", "zeros_like", "slice_scatter",
})  # fmt: skip
"""Operators that move values and compute none."""
_WAITS = frozenset({torch.ops._c10d_functional.wait_tensor.default})
_SCALING = frozenset({"div", "div_", "mul", "mul_"})

_MODEL_FRAME = "model_frame"
"""Of a node, the position of the frame that stands for it, where the graph alone does not tell."""

_LAMBDA = "<lambda>"
_BACKWARD = "backward"
_BACKWARD_PASSES = (_BACKWARD, "grad")
"""What runs a backward pass and the hooks of its gradients."""

Function = tuple[str, int]
"""A function: its file and the first line of its definition."""


@dataclasses.dataclass
class _Content:
    """What was recorded while a function ran. ``calls``: the lines that called it."""

    collectives: bool = False
    scales: bool = False
    computes: bool = False
    calls: set[tuple[str, int]] = dataclasses.field(default_factory=set[tuple[str, int]])

    @property
    def only_communicates(self) -> bool:
        """A scale beside a collective is the caller's business where there are several callers, else its own."""
        return self.collectives and not self.computes and (not self.scales or len(self.calls) > 1)


def is_collective(node: torch.fx.Node) -> bool:
    """Whether a node starts a communication of tensors among ranks."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace not in _COLLECTIVES or target in _WAITS:
        return False
    return any(isinstance(item, torch.fx.Node) for item in node.args)


def model_location_of(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line outside of torch and of functions that only communicate; None where none is recorded."""
    frames = frames_of(node)
    if not frames:
        return None
    return located(node, frames, model_frame(node, frames))


def lines_of_model(graph: torch.fx.Graph) -> set[tuple[str, int]]:
    """The lines that stand for the nodes of a graph."""
    return {at_line(place) for place in map(model_location_of, graph.nodes) if place is not None}


def helper_location_of(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line of the helper that was passed over; None where the model's own line is innermost."""
    frames = frames_of(node)
    if not frames or model_frame(node, frames) == len(frames) - 1:
        return None
    return located(node, frames, len(frames) - 1)


def innermost_in_file(node: torch.fx.Node) -> SourceLocation | None:
    """The innermost line of the file in which the model's own line is: that of a helper that it defines."""
    frames = frames_of(node)
    stands = frames[model_frame(node, frames)].file if frames else ""
    position = max((i for i, frame in enumerate(frames) if frame.file == stands), default=None)
    return None if position is None else located(node, frames, position)


def written_backward_of(node: torch.fx.Node) -> SourceLocation | None:
    """The line of a user's own ``backward`` that made a node, where it is in the file of the line that stands for it:
    what that file writes for itself may be wrong there, which is no library's helper.
    """
    frames = frames_of(node)
    stands = frames[model_frame(node, frames)].file if frames else ""
    for position in range(len(frames) - 1, 0, -1):
        frame = frames[position]
        if frame.function == _BACKWARD and frame.file == stands and _is_method(frame):
            return located(node, frames, position)
    return None


def caller_of(node: torch.fx.Node, alike: Iterable[torch.fx.Node]) -> SourceLocation | None:
    """The line that calls the function of the node's line, where ``alike``, of the same line, are called by another."""
    frames, callers = frames_of(node), _callers(node)
    for other in alike:
        for depth, (own, theirs) in enumerate(zip(callers, _callers(other), strict=False), 1):
            if at_line(own) != at_line(theirs):
                return located(node, frames, len(callers) - depth)
    return None


def only_caller_of(node: torch.fx.Node) -> SourceLocation | None:
    """The line that calls the function of the node's line, where calls at other lines do not make what it makes."""
    frames, callers = frames_of(node), _callers(node)
    function = _function(frames[len(callers)]) if callers else None
    if function is None:
        return None
    making: set[tuple[str, int]] = set()
    calling: set[tuple[str, int]] = set()
    for other in node.graph.nodes:
        theirs = frames_of(other)
        for outer, inner in itertools.pairwise(theirs):
            if _function(inner) == function != _function(outer):  # a generator's frame is called by its own function
                calling.add(at_line(outer))
                is_alike = at_line(inner) == at_line(frames[len(callers)])
                making |= {at_line(outer)} if is_alike and other.target == node.target else set()
    return located(node, frames, len(callers) - 1) if len(making) == 1 < len(calling) else None


def line_beside(node: torch.fx.Node, other: torch.fx.Node) -> SourceLocation | None:
    """The line of ``node`` in the innermost function that was running at both nodes, which says what runs first."""
    frames = frames_of(node)
    for position, (own, theirs) in enumerate(zip(frames, frames_of(other), strict=False)):
        if at_line(own) != at_line(theirs):
            return located(node, frames, position) if _function(own) == _function(theirs) else None
    return None


@contextlib.contextmanager
def within_helper(nodes: Sequence[torch.fx.Node]) -> Generator[SourceLocation | None]:
    """Lets the line of a helper stand for nodes, other than collectives, that it made for several lines that call it.

    What is wrong for all who call it is wrong there.
    """
    frames = [(node, frames_of(node)) for node in nodes]
    lines = {own[-1] for _, own in frames if own}
    callers = {(place.file, place.line, place.column) for place in map(model_location_of, nodes) if place is not None}
    place = helper_location_of(nodes[0])
    if place is None or len(lines) != 1 or len(callers) < 2 or any(map(is_collective, nodes)):
        yield None
        return
    known = [node.meta.get(_MODEL_FRAME) for node in nodes]
    for node, own in frames:
        node.meta[_MODEL_FRAME] = len(own) - 1
    try:
        yield place
    finally:
        for node, position in zip(nodes, known, strict=True):
            if position is None:
                del node.meta[_MODEL_FRAME]
            else:
                node.meta[_MODEL_FRAME] = position


def _callers(node: torch.fx.Node) -> tuple[SourceLocation, ...]:
    """The lines that called the function of the node's line, innermost first."""
    frames = frames_of(node)
    return frames[: model_frame(node, frames)][::-1] if frames else ()


def model_frame(node: torch.fx.Node, frames: tuple[SourceLocation, ...]) -> int:
    """The position of the innermost frame of a function that does more than communicate.

    Where the whole program only communicates, that of the function that was captured.
    """
    known = node.meta.get(_MODEL_FRAME)
    if known is not None:
        return known
    helpers = _helpers(node.graph)
    for position in range(len(frames) - 1, -1, -1):
        if _function(frames[position]) not in helpers or _is_hook(node, frames, position):
            return position
    return next((i for i, frame in enumerate(frames) if frame.function != _LAMBDA), len(frames) - 1)


def _is_hook(node: torch.fx.Node, frames: tuple[SourceLocation, ...], position: int) -> bool:
    """Whether a backward pass called a function that is not the derivative of another one."""
    if position == 0 or frames[position].function in (_BACKWARD, _LAMBDA):
        return False
    caller = expression_at(node, frames, position - 1)
    function = caller.func if isinstance(caller, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in _BACKWARD_PASSES


def is_made_by_autograd(node: torch.fx.Node) -> bool:
    """Whether the line that called for a backward pass computed a node, and no line of a user's own derivative."""
    frames = frames_of(node)
    made_by = expression_at(node, frames, len(frames) - 1) if frames else None
    parts = ast.walk(made_by) if made_by is not None else ()
    functions = [part.func for part in parts if isinstance(part, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr in _BACKWARD_PASSES for function in functions)


def pass_over_functions_of_spec(spec: torch.fx.Graph, implementation: torch.fx.Graph) -> None:
    """Lets the caller stand for a line of a function that the spec runs too: what is wrong there is how it is called.

    Methods keep their lines, and so does everything where the spec runs all that the implementation runs.
    """
    of_spec = {frame for node in spec.nodes for frame in frames_of(node)}
    shared, lines = set(map(_function, of_spec)), set(map(at_line, of_spec))
    for node in implementation.nodes:
        frames = frames_of(node)
        if not frames or _MODEL_FRAME in node.meta:
            continue
        position = first = model_frame(node, frames)
        while position > 0 and at_line(frames[position]) in lines and not _is_method(frames[position]):
            position -= 1
        if position < first and _function(frames[position]) not in shared:
            node.meta[_MODEL_FRAME] = position


def let_outermost_stand(graph: torch.fx.Graph) -> None:
    """Lets the outermost line stand for what only communicates in a graph of its own: a hook that calls a helper."""
    helpers = _helpers(graph)
    for node in graph.nodes:
        if all(_function(frame) in helpers for frame in frames_of(node)):
            node.meta[_MODEL_FRAME] = 0


def _is_method(frame: SourceLocation) -> bool:
    syntax = syntax_of(frame.file)
    return syntax is not None and syntax.definition_at(frame.line) in syntax.methods


def _function(frame: SourceLocation) -> Function | None:
    """The function that a frame runs; None for the text of a module, which is no function."""
    syntax = syntax_of(frame.file)
    first = None if syntax is None else syntax.definition_at(frame.line)
    return None if first is None else (frame.file, first)


_known: weakref.WeakKeyDictionary[torch.fx.Graph, tuple[int, frozenset[Function]]] = weakref.WeakKeyDictionary()


def _helpers(graph: torch.fx.Graph) -> frozenset[Function]:
    """The functions that only communicate, as far as this graph recorded them."""
    count = len(graph.nodes)
    known = _known.get(graph)
    if known is None or known[0] != count:
        known = count, _find_helpers(graph)
        _known[graph] = known
    return known[1]


def _find_helpers(graph: torch.fx.Graph) -> frozenset[Function]:
    contents: dict[Function, _Content] = {}
    for node in graph.nodes:
        target = node.meta.get(MADE_BY, node.target)
        if not isinstance(target, OpOverload) or node.meta.get("is_gradient_acc"):
            continue  # The sum of a value's gradients has the place of one of them.
        frames = frames_of(node)
        takes_number = any(symbolic_expression(item.meta.get("val")) is not None for item in node.all_input_nodes)
        for position, frame in enumerate(frames):
            function = _function(frame)
            if function is None:
                continue
            content = contents.setdefault(function, _Content())
            _record(content, target, takes_number)
            if position > 0:
                content.calls.add((frames[position - 1].file, frames[position - 1].line))
    return frozenset(function for function, content in contents.items() if content.only_communicates)


def _record(content: _Content, target: OpOverload, takes_number: bool) -> None:
    """``takes_number``: a number that is not the same on all ranks says which part a rank takes."""
    name = target._schema.name.split("::")[1]
    if target.namespace in _COLLECTIVES:
        content.collectives = True
    elif name in _SCALING:
        content.scales = True
    elif takes_number or (name not in _PLUMBING and not is_view(target)):
        content.computes = True
