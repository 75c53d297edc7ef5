"""What zero times an infinity is, and an infinity less itself, as rows that mutants must fail.

An infinity that a program writes stays in sums, products, choices, pieces and copies: torch gives NaN, so no value is
zero. Where a function makes it a number, as an exponential does of masked scores, zero times the function is zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

from tests.lemmas.conditions import Check
from tests.lowering.graphs import GraphBuilder, blockers
from verifycompile.ir.algebra import EXPONENTIAL, IOTA, has_infinity
from verifycompile.ir.term import Operation, TermPool, identity_view
from verifycompile.refinement.placement import same_value
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import UNKNOWN
from verifycompile.rewrites.operators.elementwise import choose

aten = torch.ops.aten
X = torch.arange(12.0).remainder(5).reshape(4, 3)
STORED = torch.tensor([1.0, math.inf, 2.0]).expand(4, 3).contiguous()
ALGEBRA = ("has_infinity", "_has_infinity", "_keeps_infinities", "holds_infinity", "_holds_infinity")
"""Functions of the algebra whose conditions are changed."""

Made = Callable[[GraphBuilder, torch.fx.Node], torch.fx.Node]


def _large(g: GraphBuilder, x: torch.fx.Node) -> torch.fx.Node:
    return g.call(aten.gt.Scalar, x, 3.0)


def _filled(value: float) -> Made:
    return lambda g, x: g.call(aten.masked_fill.Scalar, x, _large(g, x), value)


def _full(g: GraphBuilder, value: float) -> torch.fx.Node:
    return g.call(aten.full.default, [4, 3], value)


def _of(made: Made, target: Callable[..., Any], *others: Any) -> Made:
    return lambda g, x: g.call(target, made(g, x), *others)


def _scores(g: GraphBuilder, x: torch.fx.Node) -> torch.fx.Node:
    """A mask that is minus infinity or zero, added."""
    return g.call(aten.add.Tensor, x, g.call(aten.where.Scalar, _large(g, x), -math.inf, 0.0))


def _added(g: GraphBuilder, x: torch.fx.Node) -> torch.fx.Node:
    return g.call(aten.add.Scalar, x, math.inf)


_INFINITE: dict[str, Made] = {
    "a sum": _added,
    "a masked sum": _scores,
    "a choice": _filled(math.inf),
    "a choice of minus infinity": _filled(-math.inf),
    "a tensor of one number": lambda g, _: _full(g, math.inf),
    "a stored tensor": lambda g, _: g.constant("stored", STORED),
    "a product": lambda g, x: g.call(aten.mul.Tensor, x, _filled(math.inf)(g, x)),
    "one of two pieces": lambda g, x: g.call(aten.cat.default, [x, _filled(math.inf)(g, x)]),
    "a stack": lambda g, x: g.call(aten.stack.default, [_added(g, x), x]),
    "other places": _of(_filled(math.inf), aten.roll.default, [1], [0]),
    "a view": _of(_filled(math.inf), aten.view.default, [2, 6]),
    "a part": _of(_filled(math.inf), aten.slice.Tensor, 0, 1, 3),
    "a sum over a row": _of(_filled(math.inf), aten.sum.dim_IntList, [1]),
    "an exponential": lambda g, _: g.call(aten.exp.default, _full(g, math.inf)),
    "an exponential of a sum": _of(_added, aten.exp.default),
    "an exponential of a choice": _of(_filled(math.inf), aten.exp.default),
    "an exponential of a mask": lambda g, x: g.call(
        aten.exp.default, g.call(aten.where.Scalar, _large(g, x), math.inf, 0.0)
    ),
}
_FINITE: dict[str, Made] = {
    "a number": lambda _, x: x,
    "an exponential": _of(_filled(-math.inf), aten.exp.default),
    "an exponential of a masked sum": _of(_scores, aten.exp.default),
    "an exponential of a masked sum at other places": _of(_of(_scores, aten.roll.default, [1], [0]), aten.exp.default),
    "shares": _of(_filled(-math.inf), aten._softmax.default, 1, False),
    "shares of a masked sum": _of(_scores, aten._softmax.default, 1, False),
    "a bounded function": _of(_filled(math.inf), aten.tanh.default),
    "what is never chosen": lambda g, x: g.call(
        aten.where.ScalarSelf, g.call(aten.lt.Scalar, g.call(aten.arange.default, 3), 0), math.inf, x
    ),
    "another choice": _filled(2.0),
    "the largest from which less is taken": lambda g, x: g.call(
        aten.exp.default,
        g.call(aten.sub.Tensor, x, g.call(aten.maximum.default, x, _full(g, -math.inf))),
    ),
}


def _shape(node: torch.fx.Node) -> list[int]:
    return list(node.meta["val"].shape)


_ZEROS: dict[str, Made] = {
    "zero": lambda g, y: g.call(aten.mul.Scalar, y, 0.0),
    "a tensor of zeros": lambda g, y: g.call(aten.mul.Tensor, y, g.call(aten.full.default, _shape(y), 0.0)),
    "a sum with none": lambda g, y: g.call(aten.add.Tensor, g.call(aten.full.default, _shape(y), 0.0), y, alpha=0),
    "a difference": lambda g, y: g.call(aten.sub.Tensor, y, y),
}
"""What is zero of a number."""


def checks() -> Iterator[tuple[str, Check]]:
    for how, zero in _ZEROS.items():
        for name, made in _INFINITE.items():
            yield f"infinite: {name}, {how}", functools.partial(_is_zero, made, zero, False)
        for name, made in _FINITE.items():
            yield f"finite: {name}, {how}", functools.partial(_is_zero, made, zero, True)
    for name, made in _INFINITE.items():
        yield f"masked: {name}", functools.partial(_masked, made, True)
    for name, made in _FINITE.items():
        yield f"masked: {name}", functools.partial(_masked, made, False)
    for infinite in (math.inf, -math.inf):
        yield f"times {infinite}", functools.partial(_times_infinity, infinite)
    yield "undeclared", _undeclared
    yield "kinds of numbers", _kinds_of_numbers
    yield "once", _once_is_itself
    yield "unknown", _unknown_values


def _is_zero(made: Made, zero: Made, expected: bool) -> None:
    g = GraphBuilder()
    node = zero(g, made(g, g.input("x", X)))
    lowering = g.lower(node)
    value = lowering.view(node)
    is_zero = value is not None and same_value(value, lowering.builder.full(0, _shape(node)))
    assert is_zero == expected == (not node.meta["val"].isnan().any())
    assert not expected or blockers(lowering) == []


def _masked(made: Made, expected: bool) -> None:
    """A mask times what holds an infinity is no number where the mask is zero; a choice of the same is zero there."""
    g = GraphBuilder()
    held = made(g, g.input("x", X))
    mask = g.call(aten.gt.Scalar, g.input("m", torch.zeros(_shape(held))), 1.0)
    for factors in ((held, mask), (mask, held)):
        node = g.call(aten.mul.Tensor, *factors)
        found = {message for _, _, message in blockers(g.lower(node))}
        assert found == ({"a product with infinity"} if expected else set())
        assert node.meta["val"].isnan().any() == expected
    chosen = g.call(aten.where.ScalarOther, mask, held, 0.0)
    assert blockers(g.lower(chosen)) == []


def _times_infinity(infinite: float) -> None:
    """Nor is a product of what may be zero with an infinity, or with one where a mask is one."""
    g = GraphBuilder()
    x = g.input("x", X)
    for held in (_full(g, infinite), g.call(aten.where.Scalar, _large(g, x), infinite, 0.0)):
        lowering = g.lower(g.call(aten.mul.Tensor, x, held))
        assert [message for _, _, message in blockers(lowering)] == ["a product with infinity"]


def _undeclared() -> None:
    """Zero times what only has no declaration is zero."""
    g = GraphBuilder()
    x = g.input("x", X)
    node = g.call(aten.mul.Scalar, g.call(aten._add_relu.Tensor, x, x), 0)
    lowering = g.lower(node)
    assert node not in lowering.blockers
    value = lowering.view(node)
    assert value is not None
    assert value.is_zero


def _kinds_of_numbers() -> None:
    """A number of each rank, which is a value, and a complex one."""
    rank = sympy.Symbol("rank")
    b = Builder(TermPool(), (2,), {rank: 0})
    assert b.scale(b.full(1, (3,)), rank).term.operation is IOTA
    g = GraphBuilder()
    node = g.call(aten.mul.Scalar, g.input("x", X.to(torch.complex64)), 2j)
    assert blockers(g.lower(node)) == []


def _once_is_itself() -> None:
    g = GraphBuilder()
    held = _filled(-math.inf)(g, g.input("x", X))
    ones = g.call(aten.full.default, [4, 3], 1.0)
    for node in (g.call(aten.mul.Scalar, held, 1.0), g.call(aten.mul.Tensor, held, ones)):
        lowering = g.lower(node, held)
        value, expected = lowering.view(node), lowering.view(held)
        assert value is not None
        assert expected is not None
        assert same_value(value, expected)


def _unknown_values() -> None:
    """What nothing is known of is taken from itself by no law, in exponentials of sums, choices and copies either."""
    b = Builder(TermPool())
    unknown = identity_view(b.pool.intern(UNKNOWN, ("spec", "empty", 0), (), (2,), 1, 0, (), ()))
    x = b.pool.leaf("x", (2,))
    assert not has_infinity(x)
    for value in (unknown, b.add(x, unknown), b.mul(x, unknown), b.exp(b.add(x, unknown))):
        assert has_infinity(value)
        assert not b.sub(value, value).is_zero
    assert not has_infinity(b.exp(unknown))
    keep = b.pool.leaf("keep", (2,), indicator=True)
    shifted = b.exp(b.sub(x, b.pointwise(Operation("plain"), choose(b, keep, x, -math.inf))))
    assert shifted.term.operation is EXPONENTIAL
    assert not has_infinity(shifted)
    assert b.scale(unknown, 0).is_zero
