"""What a value of a captured graph is called in the user's source: a variable, an expression, or an operator in one.

Names of a graph (``view_39``, ``primals_2``) say nothing to someone who did not read it.
"""

from __future__ import annotations

import ast
import operator
import re
import weakref
from collections.abc import Mapping

import torch.fx
from torch._ops import OpOverload

from verifycompile.program import Program, Role
from verifycompile.torch_interface.operators.evaluation import is_view
from verifycompile.torch_interface.source_lines.model_lines import model_frame
from verifycompile.torch_interface.source_lines.source import MADE_BY, expression_at, frames_of
from verifycompile.torch_interface.source_lines.syntax import syntax_of
from verifycompile.torch_interface.training_step.gradient_marks import owner_of_gradient

MAX_LENGTH = 60
"""Characters of an expression that are shown."""

GRADIENT_OF = "gradient of "
"""How the name of a value begins that is the gradient of a parameter, or of an output."""

_GRAPH_LINE = re.compile(r"^%(?P<name>\w+) ")
"""A line of a graph that is shown in the place of source."""

_COTANGENTS = "tangents_"
"""What AOTAutograd calls the placeholders of cotangents."""

_COPIES = frozenset(
    {"clone", "contiguous", "detach", "alias", "lift_fresh_copy", "wait_tensor", "copy", "_unsafe_view"}
)


def names_of_inputs(program: Program) -> dict[torch.fx.Node, str]:
    """What the placeholders of a program are called."""
    return {
        item.node: f"{GRADIENT_OF}{item.name}" if item.role is Role.TANGENT else item.name for item in program.inputs
    }


def value_name(node: torch.fx.Node, inputs: Mapping[torch.fx.Node, str] | None = None) -> str:
    """The name of a value. ``inputs``: what placeholders are called; without it their names in the graph are taken."""
    if node.op == "placeholder":
        return (inputs or {}).get(node, node.name)
    owner = owner_of_gradient(node, _moves)
    if owner:
        return f"{GRADIENT_OF}{owner}"
    frames = frames_of(node)
    if not frames:
        return str(node.target) if node.op == "get_attr" else operator_of(node)
    position = model_frame(node, frames)
    frame = frames[position]
    found = expression_at(node, frames, position)
    if found is None:
        syntax = syntax_of(frame.file)
        line = syntax.lines[frame.line - 1] if syntax is not None and frame.line <= len(syntax.lines) else ""
        shown = _GRAPH_LINE.match(line)
        return shown["name"] if shown is not None else operator_of(node)
    syntax = syntax_of(frame.file)
    assert syntax is not None
    if is_backward(node):
        return f"backward of {_shortened(syntax.text_of(found))}"
    if not _is_result(node, found):
        return f"{operator_of(node)} in {_shortened(syntax.text_of(found))}"
    return _target(syntax.targets.get(found), node) or _shortened(syntax.text_of(found))


def is_backward(node: torch.fx.Node) -> bool:
    """Whether the value is computed from a cotangent: what an autograd.Function records says nothing of it."""
    known = _backward.get(node.graph)
    if known is None or known[0] != len(node.graph.nodes):
        known = len(node.graph.nodes), _find_backward(node.graph)
        _backward[node.graph] = known
    return node in known[1]


_backward: weakref.WeakKeyDictionary[torch.fx.Graph, tuple[int, set[torch.fx.Node]]] = weakref.WeakKeyDictionary()


def _find_backward(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        is_cotangent = node.op == "placeholder" and node.name.startswith(_COTANGENTS)
        if is_cotangent or node.meta.get("autograd_backward") or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def call_name(node: torch.fx.Node) -> str:
    """What a call is called in messages about what it does: its expression, or its operator and the expression."""
    text, found = expression_of(node), _expression_of(node)
    return (
        text
        if found is None or (_is_result(node, found) and not is_backward(node))
        else f"`{operator_of(node)}` in {text}"
    )


def expression_of(node: torch.fx.Node) -> str:
    """The expression of the source that recorded a node; its operator where none is known."""
    frames = frames_of(node)
    found = _expression_of(node)
    syntax = syntax_of(frames[model_frame(node, frames)].file) if found is not None else None
    return f"`{operator_of(node)}`" if found is None or syntax is None else f"`{_shortened(syntax.text_of(found))}`"


def operator_of(node: torch.fx.Node) -> str:
    """The operator that computed a value: for an element of a tuple, the operator that returned the tuple."""
    source = _producer(node)
    target = source.meta.get(MADE_BY, source.target)
    if isinstance(target, OpOverload):
        return target._schema.name.split("::")[1]
    return str(getattr(target, "__name__", source.name))


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    source = node.args[0] if node.target is operator.getitem else node
    return source if isinstance(source, torch.fx.Node) else node


def _is_result(node: torch.fx.Node, expression: ast.expr) -> bool:
    """Whether what the user's expression returns is this value: nothing else that it recorded computes with it."""
    pending, seen = [node], {node}
    while pending:
        for user in pending.pop().users:
            if user in seen or is_backward(user) or _expression_of(user) is not expression:
                continue
            if not _moves(user):
                return False
            seen.add(user)
            pending.append(user)
    return True


def _expression_of(node: torch.fx.Node) -> ast.expr | None:
    frames = frames_of(node)
    return expression_at(node, frames, model_frame(node, frames)) if frames else None


def _moves(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or is_view(node.target) or operator_of(node) in _COPIES


def _target(target: ast.expr | None, node: torch.fx.Node) -> str:
    """The variable that the value is assigned to; "" where there is none."""
    if isinstance(target, ast.Tuple) and node.target is operator.getitem:
        index = node.args[1]
        target = target.elts[index] if isinstance(index, int) and index < len(target.elts) else None
    return target.id if isinstance(target, ast.Name) else ""


def _shortened(text: str) -> str:
    if len(text) <= MAX_LENGTH:
        return text
    half = (MAX_LENGTH - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
