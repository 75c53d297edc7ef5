"""What a program's sizes and numbers are taken for, and which are refused, as rows that mutants must fail."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import Max

from tests.certificate.annotations_checks import RANK, K, S, number, tensor
from tests.lemmas.conditions import Check
from tests.lowering.result_checks import said_by, sizes_of
from verifycompile.ir.term import TermPool
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.numbers import number_of
from verifycompile.lowering.sizes import Sizes
from verifycompile.program import Program
from verifycompile.rewrites.rows.row_values import Ragged, Rows

U, V = sympy.symbols("u v", integer=True)
_RECORDED = 77
_OTHER = sympy.Symbol("other", integer=True)


def _sizes(side: str = "spec") -> Sizes:
    """Of a program of inputs of the sizes ``S`` and ``K``, of which the second is twice ``_OTHER``."""
    return sizes_of(tensor((S, K, 3)), side=side, size_values={K: 2 * _OTHER}, coordinates={RANK: 0})


def checks() -> Iterator[tuple[str, Check]]:
    for check in (_taken, _of_two_programs, _of_another_graph, _shapes_of_nodes, _numbers, _decided, _counts, _lengths):
        yield check.__name__, check


def number_checks() -> Iterator[tuple[str, Check]]:
    """Numbers that a program computes, by the values of what they are computed of."""
    graph: Any = torch.fx.Graph()
    size, whole, rows, x = map(graph.placeholder, ("size", "whole", "rows", "x"))
    size.meta["val"], whole.meta["val"], rows.meta["val"], x.meta["val"] = number(S), 3, tensor((U, 6)), tensor((4, S))
    lowering = Lowering(Program(SimpleNamespace(graph=graph), (), ()), TermPool(), "spec")  # pyright: ignore[reportArgumentType]
    b = lowering.builder
    lowering.values.update({size: S, whole: 3, x: b.pool.leaf("x", (4, S))})
    present = b.pool.leaf("present", (4,))
    lowering.values[rows] = Ragged(b.pool.leaf("table", (4, 6)), 0, Rows(4, present, None))
    lowering.sizes.counts.views[U] = b.sum(present, [0])
    read, size_of, most = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.sym_size.int, torch.sym_max
    unknown = "the number `{}` gives is not known"
    for k, (target, args, kwargs, expected, said) in enumerate((
        (operator.add, (size, 1), {}, S + 1, ""), (operator.add, (whole, 1), {}, _RECORDED, ""),
        (operator.add, (whole, size), {}, S + 3, ""), (operator.add, (3, 1), {}, _RECORDED, ""),
        (most, (3,), {"b": whole}, _RECORDED, ""), (most, (), {"a": size, "b": 1}, Max(S, 1), ""),
        (read, (x,), {}, _RECORDED, ""), (size_of, (x, 1), {}, S, ""), (size_of, (x, 0), {}, 4, ""),
        (size_of, (rows, 0), {}, U, ""), (size_of, (rows, 1), {}, None, "the number `u` of rows is not known"),
        (operator.add, (x, 1), {}, None, unknown.format(operator.add)),
        (operator.add, (size, x), {}, None, unknown.format(operator.add)),
        (torch.ops.aten.sym_stride.int, (x, 0), {}, None, unknown.format("aten.sym_stride.int")),
    )):  # fmt: skip
        node = graph.call_function(target, args, kwargs)
        recorded = U if rows in args else _RECORDED
        yield f"number {k}", functools.partial(_number, lowering, node, recorded, expected, said)


def _number(lowering: Lowering, node: torch.fx.Node, recorded: Any, expected: Any, said: str) -> None:
    found = list[Any]()
    said_by(lambda: found.append(number_of(lowering, node, recorded)), said)
    assert found == ([] if said else [expected])


def _taken() -> None:
    sizes = _sizes()
    for size, expected in ((3, 3), (number(S * 2), 2 * S), (S, S), (number(K), 2 * _OTHER), (number(S * 0 + 4), 4)):
        assert sizes.size(size) == expected
    assert sizes.shape(tensor((S, 3, K))) == (S, 3, 2 * _OTHER)


def _of_two_programs() -> None:
    """What each computes from its data is another number, if it has the same name."""
    spec, own = _sizes("spec"), _sizes("impl")
    for expression in (U, S + U, _OTHER + RANK):
        assert spec.size(number(expression)) != own.size(number(expression)), expression
    assert spec.size(number(U)) == sympy.Symbol("spec:u", positive=True)
    assert spec.size(number(S * _OTHER)) == own.size(number(S * _OTHER)) == S * _OTHER


def _of_another_graph() -> None:
    sizes = _sizes()
    with sizes.reading({U: S}):
        assert sizes.size(number(U)) == S == sizes.number(number(U))
        assert sizes.size(U) == sympy.Symbol("spec:u", positive=True)
    assert sizes.size(number(U)) == sympy.Symbol("spec:u", positive=True)


def _shapes_of_nodes() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for value, expected in ((tensor((S, 3)), (S, 3)), ((tensor((3,)),), None), (None, None), (number(S), None)):
        node.meta["val"] = value
        assert _sizes().shape_of(node) == expected


def _numbers() -> None:
    sizes = _sizes()
    for value, expected in (
        (3, 3), ("text", "text"), (None, None), (1.5, 1.5), (number(S + K), S + 2 * _OTHER), (number(RANK + 1), RANK + 1),
        (number(S - S + 4), 4), (number(S / 2, "SymFloat"), S / 2), (number(sympy.Gt(S, 1), "SymBool"), sympy.Gt(S, 1)),
        (number(sympy.true, "SymBool"), sympy.true),
    ):  # fmt: skip
        found = sizes.number(value)
        assert (found, type(found)) == (expected, type(expected)), value
    for expression in (U, U + S):
        said_by(lambda e=expression: sizes.number(number(e)), f"the number `{expression}` is read from a tensor")
        assert sizes.is_unknown(expression)
    for expression in (S, RANK, _OTHER, S * RANK + 1, sympy.Integer(3)):
        assert not sizes.is_unknown(expression)
    pool = TermPool()
    sizes.counts.views[U] = pool.leaf("u", ())
    assert sizes.number(number(U + S)) == U + S
    said_by(lambda: sizes.number(number(U + V)), "the number `u + v` is read from a tensor")


def _decided() -> None:
    """Of sizes that are read from tensors, where each is a symbol."""
    sizes = _sizes()
    sizes.decide(tensor((U, S, 3, 2 * V, RANK)), (5, 6, 7, 8, 9))
    assert sizes.size(number(U)) == 5 == sizes.number(number(U))
    assert (sizes.size(number(S)), sizes.number(number(RANK))) == (S, RANK)
    assert not sizes.is_unknown(U)
    assert sizes.is_unknown(V)
    sizes.decide(tensor((U,)), (6,))
    assert sizes.size(number(U)) == 5
    sizes.decide(tensor((V, 3)), (S,))
    assert sizes.size(number(V + U)) == S + 5


def _counts() -> None:
    """Numbers that are read are symbols of their own, each of one tensor."""
    pool = TermPool()
    x, y = pool.leaf("x", ()), pool.leaf("y", ())
    sizes = _sizes()
    for expression, value, noted in (
        (U, x, {U: x}),
        (U, x, {U: x}),
        (S, x, {U: x}),
        (V + 1, x, {U: x}),
        (V, None, {U: x}),
    ):
        sizes.note_count(number(expression), value)
        assert sizes.counts.views == noted
    said_by(lambda: sizes.note_count(number(U), y), "the number `u` is read from two tensors")
    sizes.note_count(number(V), y)
    assert sizes.counts.views == {U: x, V: y}


def _lengths() -> None:
    """Symbols that are sizes of tensors are known not to be below zero, where a program reads numbers at all."""
    for target, expected in ((torch.ops.aten.nonzero.default, {S, U, V}), (torch.ops.aten.neg.default, set[Any]())):
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        for value in (tensor((S, K + 1, 3)), (tensor((U,)), number(sympy.Symbol("w"))), [tensor((V,)), None], None):
            node = graph.call_function(target, (x,))
            node.meta["val"] = value
        sizes = sizes_of(graph=graph)
        assert sizes.counts.lengths == expected
        assert sizes.reads_counts is bool(expected)
