"""What has no value, is no number, or is recorded otherwise than its call gives it, as rows that mutants must fail."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from tests.lemmas.conditions import Check
from tests.lowering.graphs import GraphBuilder, blockers
from verifycompile.ir.term import TermPool
from verifycompile.lowering.lower import Lowering, _takes_real_number
from verifycompile.program import Blocker, Program, ProgramInput, Role
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites.registry import Group

aten = torch.ops.aten
X = torch.arange(12.0).reshape(4, 3)
FUNCTIONS = ("lower", "_operands", "_value", "element", "_takes_real_number", "_draws_undeclared")
"""Those whose conditions are changed; what the others say is said by other tests."""


def checks() -> Iterator[tuple[str, Check]]:
    for name, undefined in _UNDEFINED.items():
        for through in _THROUGH:
            yield f"undefined {name} {through}", functools.partial(_is_no_number, undefined, through)
    yield "numbers", _numbers_stay_numbers
    yield "once", _each_node_is_lowered_once
    yield "groups", _of_a_group_nothing_is_lowered
    yield "drawn", _of_what_draws_nothing_is_lowered
    yield "kinds", _kinds_of_nodes
    yield "empty", _items_without_elements
    yield "opaque", _what_is_no_tensor_has_no_value
    yield "results", _results_of_calls
    for row in _REAL_NUMBERS:
        yield "real numbers", functools.partial(_takes, *row)


# ------------------------------------------------------------------------------------------------ no numbers

_UNDEFINED = {
    "by zero": lambda g, x: g.call(aten.div.Scalar, x, 0),
    "infinity": lambda g, x: g.call(aten.mul.Scalar, x, math.inf),
    "no number": lambda g, x: g.call(aten.add.Scalar, x, math.nan),
}
_THROUGH = ("nothing", "a call", "pieces", "pieces in another order", "one piece")


def _passed(g: GraphBuilder, node: torch.fx.Node, through: str) -> torch.fx.Node:
    if through == "nothing":
        return node
    if through == "a call":
        return g.call(aten.cos.default, node)
    split = g.call(aten.split.Tensor, node, 2)
    pieces = [g.item(split, k) for k in range(2)]
    if through == "one piece":
        return pieces[1]
    return g.call(aten.cat.default, pieces if through == "pieces" else pieces[::-1])


def _is_no_number(undefined: Any, through: str) -> None:
    """Zero times it is not zero, wherever it goes."""
    g = GraphBuilder()
    node = g.call(aten.mul.Scalar, _passed(g, undefined(g, g.input("x", X)), through), 0)
    lowering = g.lower(node)
    (message,) = {message for _, _, message in blockers(lowering)}
    assert message in ("division by zero", "a product with infinity", "NaN is not a real number")
    assert node in lowering.blockers
    value = lowering.view(node)
    assert value is None or not same_value(value, lowering.builder.full(0, value.shape))


def _unknown(g: GraphBuilder, x: torch.fx.Node) -> torch.fx.Node:
    """A call without a declaration."""
    return g.call(aten._add_relu.Tensor, x, x)


def _numbers_stay_numbers() -> None:
    """Zero times what only has no declaration is zero."""
    g = GraphBuilder()
    passed = _passed(g, _unknown(g, g.input("x", X)), "pieces")
    node = g.call(aten.mul.Scalar, passed, 0)
    lowering = g.lower(node)
    assert {message.partition(" ")[0] for _, _, message in blockers(lowering)} == {"operator"}
    assert node not in lowering.blockers


# ------------------------------------------------------------------------------------------------ which nodes


def _each_node_is_lowered_once() -> None:
    g = GraphBuilder()
    x = g.input("x", X)
    first = g.call(aten.cos.default, x)
    left, right = g.call(aten.exp.default, first), g.call(aten.sin.default, first)
    last = g.call(aten.add.Tensor, g.call(aten.add.Tensor, left, first), right)
    lowering = g.lower(x, last, first, last)
    assert len(lowering.seconds) == 5
    assert blockers(lowering) == []


def _of_a_group_nothing_is_lowered() -> None:
    g = GraphBuilder()
    mesh = g.input("mesh", None)
    group = g.graph.call_function(operator.getitem, (mesh, 0))
    group.meta["val"] = "0"
    lowering = g.lower(group, mesh=(2,), groups={group.name: (0,)})
    assert lowering.values == {group: Group((0,))}


def _of_what_draws_nothing_is_lowered() -> None:
    """What a call without a declaration draws is another value each time, whatever it fills."""
    g = GraphBuilder()
    x = g.call(aten.exp.default, g.input("x", X))
    drawn, known = g.call(aten.bernoulli.p, x, 0.5), g.call(aten.native_dropout.default, x, 0.0, True)
    lowering = g.lower(drawn)
    assert x not in lowering.values
    assert [code for _, code, _ in blockers(lowering)] == ["VC216"]
    dropped = g.call(aten.native_dropout.default, x, 0.5, True)
    assert x in g.lower(dropped).values
    lowering = g.lower(g.item(known, 0), g.call(aten.cos.default, x))
    assert x in lowering.values
    assert blockers(lowering) == []


def _kinds_of_nodes() -> None:
    g = GraphBuilder()
    x, held = g.input("x", X), g.constant("held", X)
    node = g.graph.call_method("exp", (x,))
    node.meta["val"] = X.exp()
    assert blockers(g.lower(node)) == [("exp", "VC206", "a graph node of kind `call_method`")]
    size, blocked = g.call(operator.add, 2, 3), g.call(aten.neg.default, x)
    lowering = g.lower(size, blocked, blockers=(Blocker(blocked, "VC203", "as told"),))
    assert blockers(lowering) == [(blocked.name, "VC203", "as told")]
    assert lowering.values[size] == 5
    lowering = g.lower(held)
    assert blockers(lowering) == []
    assert lowering.view(held) is not None
    given = Lowering(lowering.program, lowering.pool, "impl")
    given.lower([x])
    assert blockers(given) == [("x", "VC206", "the input `x` has no counterpart in the other program")]


def _items_without_elements() -> None:
    g = GraphBuilder()
    split = g.call(aten.split_with_sizes.default, g.input("x", X), [0, 4])
    none, rest = g.item(split, 0), g.item(split, 1)
    lowering = g.lower(none, rest)
    assert blockers(lowering) == []
    (empty, whole) = (lowering.view(node) for node in (none, rest))
    assert empty is not None
    assert empty.shape == (0, 3)
    assert whole is not None
    assert whole.shape == (4, 3)


def _what_is_no_tensor_has_no_value() -> None:
    g = GraphBuilder()
    x, mesh = g.input("x", X), g.input("mesh", None)
    program = g.lower(g.call(aten.exp.default, x)).program
    inputs = tuple(ProgramInput(node, role, node.name) for node, role in ((x, Role.INPUT), (mesh, Role.OPAQUE)))
    held = Program(program.graph, inputs, ())
    assert Lowering(held, TermPool(), "spec").values == {mesh: None}


def _results_of_calls() -> None:
    """One of several results has the shape that is recorded of it, and another one than is declared has no value."""
    g = GraphBuilder()
    node = g.call(aten.native_layer_norm.default, g.input("x", X), [3], None, None, 1e-5)
    mean, again = g.item(node, 1), g.item(node, 1)
    again.meta["val"] = again.meta["val"].squeeze(-1)
    lowering = g.lower(mean, again)
    told = "is recorded in another shape than its call"
    assert [(name, code, told in text) for name, code, text in blockers(lowering)] == [(again.name, "VC206", True)]
    g = GraphBuilder()
    given = g.input("several", (X, X, X[:0]))
    found, lost, empty = (g.item(given, k) for k in range(3))
    names = g.item(g.input("names", ("a", "b")), 1)
    other = g.lower(g.call(aten.neg.default, g.input("x", X)))
    view = other.pool.leaf("y", (4, 3))
    other.provide(given, (view, None, None))
    other.provide(names.all_input_nodes[0], ("a", "b"))
    other.lower([found, lost, empty, names])
    told = "`several`: result 1 is not declared"
    assert blockers(other) == [(lost.name, "VC206", told)]
    assert (other.values[found], other.values[names]) == (view, "b")


# ------------------------------------------------------------------------------------------------ real numbers

_N, _OTHER = object(), object()
_REAL_NUMBERS: tuple[tuple[Any, tuple[Any, ...], dict[str, Any], bool], ...] = (
    (aten.mul.Tensor, (_N, _OTHER), {}, True), (aten.mul.Tensor, (_OTHER, _N), {}, True),
    (aten.add.Tensor, (_OTHER, _OTHER), {"alpha": _N}, False), (aten.add.Tensor, (_OTHER, _N), {"alpha": _N}, False),
    (aten.rsub.Scalar, (_OTHER, _N, _N), {}, False), (aten.rsub.Scalar, (_OTHER, _N, _OTHER), {}, True),
    (aten.rsub.Scalar, (_OTHER, _OTHER, _N), {}, False), (aten.pow.Tensor_Scalar, (_OTHER, _N), {}, False),
    (aten.sub.Tensor, (_OTHER, _OTHER), {}, False),
)  # fmt: skip
"""Calls, and whether the number stands for a tensor without dimensions in them."""


def _takes(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], does: bool) -> None:
    node: Any = SimpleNamespace(target=target, args=args, kwargs=kwargs)
    number: Any = _N
    assert _takes_real_number(node, number) is does
