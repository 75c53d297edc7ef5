"""What the operands of a call are taken for, and which calls are refused, as rows that mutants must fail."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import sympy
import torch
import torch.distributed._ops.device_mesh  # pyright: ignore[reportUnusedImport]  # registers the coordinate operator

from tests.certificate.annotations_checks import RANK, S, number, tensor
from tests.lemmas.conditions import Check
from tests.lowering.graphs import GraphBuilder, blockers
from tests.lowering.result_checks import said_by
from verifycompile.ir.term import TermPool, View
from verifycompile.lowering.elements import calls_of_elements
from verifycompile.lowering.lower import Lowering
from verifycompile.lowering.recorded import LARGEST_CONSTANT
from verifycompile.program import Blocker, Program, ProgramInput, Role
from verifycompile.rewrites.registry import Group, UnsupportedError
from verifycompile.rewrites.values import Piece, Pieces, ReadRows

aten = torch.ops.aten
X = torch.arange(12.0).reshape(4, 3)
U = sympy.Symbol("u", integer=True)
FUNCTIONS = (
    "size_value", "call", "note_casts", "_without_elements", "_refuse_unknown", "argument", "_elements", "view", "constant",
)  # fmt: skip


def checks() -> Iterator[tuple[str, Check]]:
    for k, row in enumerate(_SIZES):
        yield f"size {k}", functools.partial(_size, *row)
    for check in (
        _read_numbers, _places, _rows, _rows_laid_out, _without_elements, _pieces_put_together, _several_results,
        _precisions, _casts, _operands,
        _literals, _blocked_operands, _views, _constants,
    ):  # fmt: skip
        yield check.__name__, check


def element_checks() -> Iterator[tuple[str, Check]]:
    yield "elements", _elements


def _lowering(*inputs: Any, **program: Any) -> tuple[Lowering, Any, Sequence[torch.fx.Node]]:
    """Of a program of inputs of which these are recorded, each with a leaf of its name; and its graph."""
    graph: Any = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{k}") for k in range(len(inputs))]
    for node, value in zip(nodes, inputs, strict=True):
        node.meta["val"] = value
    items = tuple(ProgramInput(node, Role.INPUT, node.name) for node in nodes)
    held: Any = SimpleNamespace(graph=graph)
    lowering = Lowering(Program(held, items, (), **program), TermPool(), "spec")
    for node, value in zip(nodes, inputs, strict=True):
        is_tensor = isinstance(value, torch.Tensor)
        shape = tuple(map(lowering.sizes.size, value.shape)) if is_tensor else ()
        lowering.provide(node, lowering.pool.leaf(node.name, shape) if is_tensor else lowering.sizes.number(value))
    return lowering, graph, nodes


def _called(graph: Any, recorded: Any, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = recorded
    return node


# ------------------------------------------------------------------------------------------------ numbers

_ADD = "`add` is recorded as {} where its operands give s + 1"
_SIZES: tuple[tuple[Any, Any, tuple[Any, ...], Any, str], ...] = (
    (number(S + 1), operator.add, (0, 1), S + 1, ""), (number(S + 2), operator.add, (0, 1), None, _ADD.format("s + 2")),
    (number(S**2 + 3 * S), operator.mul, (0, "S + 3"), S**2 + 3 * S, ""),
    (number(sympy.Lt(S, 3), "SymBool"), operator.lt, (0, 3), sympy.Lt(S, 3), ""),
    (number(sympy.Gt(S, 3), "SymBool"), operator.lt, (0, 3), None,
     "`lt` is recorded as s > 3 where its operands give s < 3"),
    (number(sympy.Lt(S, 3), "SymBool"), operator.add, (0, 1), None, _ADD.format("s < 3")),
    (number(S), aten.sym_size.int, (1, 1), S, ""),
)  # fmt: skip
"""What is recorded of a call of a size and a tensor, and its value."""


def _size(recorded: Any, target: Any, args: tuple[Any, ...], expected: Any, said: str) -> None:
    lowering, graph, nodes = _lowering(number(S), tensor((4, S)))
    more = graph.placeholder("more")
    more.meta["val"], lowering.values[more] = number(S + 3), S + 3
    given = [more if a == "S + 3" else a for a in args]
    node = _called(graph, recorded, target, nodes[args[0]], *given[1:])
    found = list[Any]()
    said_by(lambda: found.append(lowering.size_value(node)), said)
    assert found == ([] if said else [expected])


def _read_numbers() -> None:
    """A number that is read from a tensor is an operand; a size may be any argument."""
    lowering, graph, (x, read, size) = _lowering(X, number(sympy.Symbol("r")), 2)
    lowering.values[read] = lowering.pool.leaf("read", ())
    product = lowering.call(_called(graph, X, aten.mul.Tensor, x, read))
    assert product == lowering.call(_called(graph, X, aten.mul.Tensor, read, x))
    told = "`aten.add.Tensor` with a number that is read from a tensor"
    said_by(lambda: lowering.call(_called(graph, X, aten.add.Tensor, x, x, alpha=read)), told)
    part = lowering.call(_called(graph, X[:2], aten.slice.Tensor, x, 0, 0, size))
    assert part.shape == (2, 3)
    item = aten._local_scalar_dense.default
    real, whole = number(sympy.Symbol("v"), "SymFloat"), number(U)
    assert lowering.size_value(_called(graph, real, item, x)) == lowering.values[x]
    assert lowering.size_value(_called(graph, whole, item, x)) == U
    assert lowering.sizes.counts.views == {U: lowering.values[x]}
    lowering.values[x] = None
    said_by(lambda: lowering.size_value(_called(graph, real, item, x)), "the number `v` is read from a tensor")


def _places() -> None:
    """A coordinate is what is recorded, and a number among the inputs; what is computed of numbers is computed again."""
    lowering, graph, (mesh, given) = _lowering(None, number(S), coordinates={RANK: 0})
    place = torch.ops.device_mesh._runtime_compute_coordinate_on_dim.default
    assert lowering.size_value(_called(graph, number(RANK), place, mesh, 0)) == RANK
    assert lowering.size_value(given) == S
    told = "`add` is recorded as 5 where its operands give 4"
    said_by(lambda: lowering.size_value(_called(graph, 5, operator.add, 1, 3)), told)


# ------------------------------------------------------------------------------------------------ rows that are read


def _rows() -> None:
    """Calls with rows that are read from data are made by what knows of such rows, where a program reads any."""
    lowering, graph, (x,) = _lowering(X)
    node = _called(graph, X, aten.neg.default, x)
    negated = lowering.call(node)
    for reads, are_read, expected in ((True, True, "rows"), (True, False, negated), (False, True, negated)):
        lowering.sizes.reads_counts = reads
        rows: Any = SimpleNamespace(are_read_by=lambda _, found=are_read: found, call=lambda _: "rows")
        vars(lowering)["read_rows"] = rows
        assert lowering.call(node) == expected


def _rows_laid_out() -> None:
    """Where they do not, the call is that of its operands as tensors of known sizes, if they can be such."""
    lowering, graph, (x,) = _lowering(X)
    node = _called(graph, X, aten.neg.default, x)
    whole, negated = lowering.values[x], lowering.call(node)
    lowering.values[x] = rows = ReadRows()
    lowering.sizes.reads_counts = True
    held: dict[torch.fx.Node, View] | None = {x: whole}
    refused = mock.Mock(side_effect=UnsupportedError("VC206", "no such call of rows"))
    stand_in: Any = SimpleNamespace(
        are_read_by=lambda _: True, call=refused, laid_out_operands=lambda _: held, laid_out=lambda _: whole
    )
    vars(lowering)["read_rows"] = stand_in
    assert lowering.argument(x, False) is rows
    assert lowering.call(node) == negated
    assert lowering.argument(x, False) == whole
    assert lowering.view(x) == whole
    lowering.values[x] = negated
    assert lowering.argument(x, False) == negated
    held = None
    said_by(lambda: lowering.call(node), "no such call of rows")


# ------------------------------------------------------------------------------------------------ calls


def _without_elements() -> None:
    """Whatever computes them, tensors without elements are equal; where some results have some, each is computed."""
    lowering, graph, (x,) = _lowering(X[:0])
    none = lowering.builder.full(0, (0, 3))
    empty, some = X[:0], X
    for recorded, expected in (
        (empty, none), ((empty, empty), (none, none)), ([empty], (none,)), (some, None), (None, None), (3, None),
        ((empty, some), None), ((some, empty), None), ((empty, None), None), ((None, empty), None), ((empty, 3), None),
    ):  # fmt: skip
        assert lowering._without_elements(_called(graph, recorded, aten.exp.default, x)) == expected, recorded
    assert lowering.call(_called(graph, empty, aten.exp.default, x)) == none
    total = lowering.call(_called(graph, X[:0].sum(0), aten.sum.dim_IntList, x, [0]))
    assert total == lowering.builder.full(0, (3,))


def _pieces_put_together() -> None:
    """All pieces of a split in their order are the whole, and none of them is made; what gives none is assembled."""
    for cut, target, args, are_made in ((X, aten.split.Tensor, (2,), False), (X, aten.unbind.int, (), True)):
        g = GraphBuilder()
        x = g.input("x", cut)
        split = g.call(target, x, *args)
        pieces = [g.item(split, k) for k in range(len(split.meta["val"]))]
        joined = g.call(aten.cat.default, pieces)
        lowering = g.lower(joined)
        assert blockers(lowering) == []
        assert [piece in lowering.values for piece in pieces] == [are_made] * len(pieces)
        whole = lowering.view(x)
        assert whole is not None
        assert lowering.view(joined) == lowering.builder.reshape(whole, joined.meta["val"].shape)
    g = GraphBuilder()
    split = g.call(aten.split.Tensor, g.input("x", X), 2)
    pieces = [g.item(split, k) for k in range(2)]
    for target, kept in ((aten.cat.default, True), (aten.stack.default, False)):
        lowering = g.lower(g.call(target, pieces[::-1]))
        assert [isinstance(lowering.values[piece], Piece) for piece in pieces] == [kept] * 2


def _several_results() -> None:
    """Of a call whose operands are given by their names, and of one that takes and gives lists."""
    g = GraphBuilder()
    x = g.input("x", X)
    call = g.call(aten.var_mean.correction, x, dim=[0])
    call.args, call.kwargs = (), {"self": x, **call.kwargs}
    variance = g.item(call, 0)
    added = g.item(g.call(aten._foreach_add.List, (x, x), [x, x], alpha=2), 1)
    lowering = g.lower(variance, added, g.call(aten.mul.Scalar, x, 3))
    assert blockers(lowering) == []
    assert lowering.view(added) == lowering.builder.scale(lowering.values[x], 3)


def _precisions() -> None:
    """A spec may be of another precision than the inputs that it is given."""
    for side, refused in (("spec", False), ("impl", True)):
        g = GraphBuilder()
        x, y = g.input("x", X), g.input("y", X.T.double())
        node = _called(g.graph, X @ X.T, aten.mm.default, x, y)
        assert (node in g.lower(node, side=side).blockers) is refused


def _casts() -> None:
    """A cast is told at the call of the program within which it is done, at the first that does it."""
    g = GraphBuilder()
    first = g.call(aten._to_copy.default, g.input("x", X), dtype=torch.bfloat16)
    second = g.call(aten._to_copy.default, g.input("y", X), dtype=torch.bfloat16)
    lowering = g.lower(first, second)
    assert lowering.casts == {"float32 to bfloat16": first}


# ------------------------------------------------------------------------------------------------ operands


def _operands() -> None:
    lowering, graph, (x, none, several) = _lowering(X, X[:0], (X, X))
    value = lowering.values[x]
    lowering.values[several] = piece = Piece(Pieces(value, 0, (2, 2)), 1)
    size = _called(graph, 3, operator.add, 1, 2)
    lowering.values[size] = 3
    assert lowering.argument(x, False) == value
    assert lowering.argument(size, False) == 3
    assert lowering.argument(none, False) == lowering.builder.full(0, (0, 3))
    assert lowering.argument(several, True) is piece
    assert lowering.argument(several, False) == piece.view(lowering.builder) == lowering.values[several]
    assert lowering.argument([x, (size, 4)], False) == [value, [3, 4]]


def _literals() -> None:
    """Of a text that names a group, the group; of a number over the inputs' sizes, its expression."""
    lowering, _, (x,) = _lowering(tensor((S,)), groups={"tp": (0,), "0": (1,)})
    part = slice(0, 2)
    literals: Mapping[str, tuple[Any, Any]] = {
        "group": ("tp", Group((0,))), "text": ("tanh", "tanh"), "number": (0, 0), "part": (part, part),
        "none": (None, None), "size": (number(2 * S), 2 * S), "real": (number(S / 2, "SymFloat"), S / 2),
    }  # fmt: skip
    for name, (given, expected) in literals.items():
        assert lowering.argument(given, False) == expected, name
    lowering.sizes.counts.views[U] = lowering.values[x]
    for given in (number(U), number(U, "SymFloat")):
        said_by(functools.partial(lowering.argument, given, False), "the number `u` is read from a tensor")


def _blocked_operands() -> None:
    """What has no value is refused with its reason; of what stands for an unknown value more is computed."""
    lowering, graph, (x, lost, nothing) = _lowering(X, X, X)
    lowering.blockers.update({node: Blocker(node, "VC203", "as told") for node in (x, lost)})
    lowering.values.update({lost: None, nothing: None})
    assert lowering.argument(x, False) == lowering.values[x]
    assert lowering.argument(nothing, False) is None
    said_by(lambda: lowering.call(_called(graph, X, aten.neg.default, lost)), "as told")
    said_by(lambda: lowering.size_value(_called(graph, 4, aten.sym_size.int, lost, 0)), "as told")


def _views() -> None:
    lowering, _, (x, other) = _lowering(X, (X, X))
    assert lowering.view(x) == lowering.values[x]
    for value in ((lowering.values[x],), 3, None):
        lowering.values[other] = value
        assert lowering.view(other) is None


def _constants() -> None:
    """A stored tensor is its content; one without a content that is read is unknown."""
    g = GraphBuilder()
    small, large = g.constant("small", X), g.constant("large", torch.zeros(LARGEST_CONSTANT + 1))
    lowering = g.lower(small, large)
    assert blockers(lowering) == [("large", "VC206", "the constant `large` has no readable content")]
    held: Any = SimpleNamespace(flag=True)
    flag: Any = SimpleNamespace(target="flag")
    assert lowering.constant(flag, held) is True


# ------------------------------------------------------------------------------------------------ lists of tensors


def _elements() -> None:
    """The call of each element, where all lists of tensors are as long as the list of results."""
    lowering, graph, (x, y, z) = _lowering(X, X[:2], X.double())
    of, add = functools.partial(calls_of_elements, lowering.sizes), aten._foreach_add.List
    found = of(_called(graph, [X, X[:2]], add, [x, y], [z, y], alpha=2))
    assert found is not None
    real, double = torch.float32, torch.float64
    assert [call.dtypes for call in found] == [{"self": real, "other": double}, {"self": real, "other": real}]
    assert [(call.shape, call.dtype) for call in found] == [((4, 3), real), ((2, 3), real)]
    for target, other, dtypes in (
        (aten._foreach_mul.ScalarList, [2.0], {"self": real}),
        (aten._foreach_mul.Tensor, z, {"self": real, "other": double}),
    ):
        found = of(_called(graph, [X], target, [x], other))
        assert found is not None
        assert [call.dtypes for call in found] == [dtypes]
    for recorded, args in (
        ([X, X], ([x],)), ([X], ([x, y],)), ([X, X], ([x, y], [x])), ([X, X], (x, [2, 2])), ([X, X], ([x, 3],)), (X, ([x],)),
    ):  # fmt: skip
        assert of(_called(graph, recorded, add, *args)) is None
