"""A working copy of a program: what is changed is changed back, and no change lets a value be computed of itself."""

from __future__ import annotations

import torch
import torch.fx

from verifycompile.cause.moves.move import Move, fixed
from verifycompile.cause.subject import OneGraph
from verifycompile.program import OutputKind, Program, ProgramInput, ProgramOutput, Role
from verifycompile.torch_interface.dynamo.graph_modules import module_of

aten = torch.ops.aten


def scaled() -> Program:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    other = graph.create_node("call_function", aten.tan.default, (x,), name="tan")
    first = graph.create_node("call_function", aten.sin.default, (x,), name="sin")
    second = graph.create_node("call_function", aten.cos.default, (first,), name="cos")
    last = graph.create_node("call_function", aten.mul.Tensor, (second, x), name="mul")
    graph.output((last,))
    for node in (x, other, first, second, last):
        node.meta["val"] = torch.empty(2, device="meta")
    inputs = (ProgramInput(x, Role.INPUT, "x"),)
    return Program(module_of(graph, torch.nn.Module()), inputs, (ProgramOutput(last, OutputKind.VALUE, "output.0", 0),))


def taking(name: str, operand: str) -> Move:
    """Lets a call take another value in the place of ``x``."""

    def apply(draft):
        draft.redirect(draft.node("x"), draft.node(operand), [draft.node(name)])

    return Move(("operand",), name, "VC108", fixed("", ""), apply)


def test_a_value_that_would_be_computed_of_itself_is_refused():
    subject = OneGraph(scaled(), scaled())
    (draft,) = subject.drafts()
    before = str(draft.program.graph.graph)
    assert not subject.apply(draft, (taking("sin", "mul"),))
    assert (str(draft.program.graph.graph), draft.changed) == (before, set())
    for name in ("mul", "tan"):  # the latter stands in front of what it takes
        assert subject.apply(draft, (taking(name, "sin"),))
        subject.undo()
    assert subject.apply(draft, (taking("mul", "sin"),))
    assert str(draft.program.graph.graph) != before
    subject.undo()
    assert (str(draft.program.graph.graph), draft.changed) == (before, set())
