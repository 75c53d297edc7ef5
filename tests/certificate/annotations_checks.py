"""What must be recorded of a program's calls, row by row: nothing is said where it is right, else what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch.fx import Graph, Node

from tests.lemmas.conditions import Check
from verifycompile.certificate import annotations
from verifycompile.certificate.annotations import AnnotationError, check_annotations
from verifycompile.certificate.storage import Block, StoredModule, StoredObject, UnregisteredOperator
from verifycompile.program import Mesh, MeshAxis, Program
from verifycompile.torch_interface.operators.derivation import Derivation
from verifycompile.torch_interface.operators.expressions import recorded_number, recorded_tensor

aten = torch.ops.aten
FEW = 1
"""Of the choices of sizes that are tried, those with two symbols of one given size each."""
S, K = sympy.symbols("s k", integer=True)
RANK = sympy.Symbol("rank", integer=True, nonnegative=True)
F32, I64 = torch.float32, torch.int64


def number(expression: Any, kind: str = "SymInt") -> Any:
    return recorded_number(kind, sympy.sympify(expression))


def tensor(
    shape: Sequence[Any], dtype: torch.dtype = F32, stride: Sequence[Any] | None = None, offset: Any = 0
) -> torch.Tensor:
    """``stride``: by default that of elements one behind the other."""
    sizes = [sympy.sympify(s) for s in shape]
    dense = [sympy.Mul(*sizes[d + 1 :]) for d in range(len(sizes))] if stride is None else stride
    told = [[_plain(v) for v in values] for values in (shape, dense, [offset])]
    return recorded_tensor(told[0], dtype, told[1], told[2][0])


def _plain(value: Any) -> Any:
    if isinstance(value, sympy.Basic):
        return int(value) if value.is_number else number(value)
    return value


@dataclasses.dataclass
class Written:
    """A program that is written call by call, each with what is recorded of it."""

    blocks: list[Block] = dataclasses.field(default_factory=list[Block])
    constants: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    graph: Graph = dataclasses.field(default_factory=Graph)

    def given(self, name: str, value: Any) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def constant(self, name: str, value: Any, recorded: Any) -> Node:
        self.constants[name] = value
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = recorded
        return node

    def call(self, value: Any, target: Any, /, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        self.blocks.append(Block(node, node.all_input_nodes, {0: node}))
        return node

    def like(self, pattern: Node, *operands: Node, value: Any = None) -> Node:
        node = self.call(pattern.meta["val"] if value is None else value, pattern.target, *operands, *pattern.args[1:])
        self.blocks[-1] = Block(pattern, node.all_input_nodes, {0: node})
        return node

    def several(self, count: int, *operands: Node) -> None:
        """The last calls as a block that is like others."""
        singles = self.blocks[-count:]
        block = Block("several", operands, {k: single.call for k, single in enumerate(singles)}, singles, lambda *_: singles[0].call)
        block.singles = singles
        self.blocks[-count:] = [block]

    def program(self, **others: Any) -> Program:
        self.graph.output(())
        module: Any = StoredModule(self.graph, self.constants, self.blocks)
        return Program(module, (), (), **others)


@dataclasses.dataclass(frozen=True)
class Row:
    program: Program
    said: str = ""
    calls: int | None = None
    """How often torch was asked."""
    tensors: int | None = None
    """How many operands were made."""


def checks() -> Iterator[tuple[str, Check]]:
    for family in (
        _of_values, _of_devices, _of_memory, _of_sizes, _of_refusals, _of_symbols, _of_numbers, _of_reads, _of_kinds, _of_repetition,
    ):  # fmt: skip
        for number_of, row in enumerate(family()):
            yield f"{family.__name__} {number_of}", functools.partial(_says, row)
    yield "symbols", _are_looked_for_once


def _are_looked_for_once() -> None:
    """Whether calls hold symbols is found out of one of those that are alike."""
    looked: list[Any] = []
    numbers = annotations.numbers_of

    def counted(value: Any) -> Iterator[Any]:
        looked.append(value)
        return numbers(value)

    assert [*annotations.choices_of(Written().program())] == [{}]
    counts: list[int] = []
    for calls in (1, 5):
        w, x = Written(), tensor((4, 6))
        first = w.call(x, aten.neg.default, w.given("x", x))
        for k in range(calls):
            w.like(first, w.given(f"y{k}", x))
        with mock.patch.object(annotations, "numbers_of", counted):
            looked.clear()
            check_annotations(w.program())
        counts.append(len(looked))
    assert counts[0] == counts[1] > 1


def _says(row: Row) -> None:
    said, made, operands = "", list[Any](), list[Any]()
    original, original_tensor = Derivation.call, Derivation.tensor

    def counted(self: Derivation, target: Any, args: Any, kwargs: Any) -> Any:
        if self._device.type == "cpu":  # what fails there is tried on a GPU as well
            made.append(target)
        return original(self, target, args, kwargs)

    def counted_tensor(self: Derivation, *args: Any) -> Any:
        if self._device.type == "cpu":
            operands.append(args)
        return original_tensor(self, *args)

    with mock.patch.object(Derivation, "call", counted), mock.patch.object(Derivation, "tensor", counted_tensor):
        try:
            check_annotations(row.program)
        except AnnotationError as error:
            said = str(error)
    assert said == row.said, (said, row.said)
    assert row.calls in (None, len(made)), len(made)
    assert row.tensors in (None, len(operands)), len(operands)


def _called(recorded: Any, target: Any, given: Any, *args: Any, said: str = "", **others: Any) -> Row:
    """A program of one call."""
    w = Written()
    w.call(recorded, target, w.given("x", given), *args)
    return Row(w.program(**others), said)


# ------------------------------------------------------------------------------------------------ devices


def _of_devices() -> Iterator[Row]:
    """Statistics of a normalization in half precision are single on a GPU, and all calls are of one device."""
    half, single = ((tensor((4, 6), dtype), tensor((4, 1), dtype)) for dtype in (torch.bfloat16, F32))
    norm = "native_layer_norm_default"
    for kinds in ((half[1],), (single[1],), (half[1], single[1]), (single[1], half[1])):
        w = Written()
        x = w.given("x", half[0])
        for statistics in kinds:
            w.call((half[0], statistics, statistics), aten.native_layer_norm.default, x, [6], None, None, 1e-5)
        place = "" if kinds[0] is single[1] else "_1"
        said = f"`{norm}{place}` is recorded as float32[4, 1] where torch gives bfloat16[4, 1]"
        yield Row(w.program(), said if len(kinds) == 2 else "")


# ------------------------------------------------------------------------------------------------ values


def _of_values() -> Iterator[Row]:
    x = tensor((4, 6))
    yield _called(x, aten.neg.default, x)
    yield _called(
        tensor((4, 5)),
        aten.neg.default,
        x,
        said="`neg_default` is recorded as float32[4, 5] where torch gives float32[4, 6]",
    )
    yield _called(
        tensor((4, 6), I64),
        aten.neg.default,
        x,
        said="`neg_default` is recorded as int64[4, 6] where torch gives float32[4, 6]",
    )
    yield _called(
        None, aten.neg.default, x, said="`neg_default` is recorded as nothing where torch gives float32[4, 6]"
    )
    yield _called(3, aten.neg.default, x, said="`neg_default` is recorded as int 3 where torch gives float32[4, 6]")
    yield _called(
        StoredObject("mesh"),
        aten.neg.default,
        x,
        said="`neg_default` is recorded as StoredObject StoredObject(kind='mesh') where torch gives float32[4, 6]",
    )
    half = tensor((4, 3), stride=(6, 1))
    other = tensor((4, 3), stride=(6, 1), offset=3)
    halves = [half, other]
    yield _called(halves, aten.split.Tensor, x, 3, 1)
    yield _called(tuple(halves), aten.split.Tensor, x, 3, 1)
    yield _called([half], aten.split.Tensor, x, 3, 1, said="`split_tensor` is recorded as 1 values")
    yield _called(halves, aten.neg.default, x, said="`neg_default` is recorded as 2 values")
    rows = [tensor((3,)), tensor((3,), offset=3)]
    yield _called(rows, aten.neg.default, tensor((2, 3)), said="`neg_default` is recorded as 2 values")
    yield _called(
        half,
        aten.split.Tensor,
        x,
        3,
        1,
        said=f"`split_tensor` is recorded as float32[4, 3] where torch gives list [{', '.join(['FakeTensor(..., size=(4, 3))'] * 2)}]",
    )
    yield _called(
        [half, tensor((4, 2))],
        aten.split.Tensor,
        x,
        3,
        1,
        said="`split_tensor` is recorded as float32[4, 2] where torch gives float32[4, 3]",
    )
    yield _called(
        [tensor((4, 2)), other],
        aten.split.Tensor,
        x,
        3,
        1,
        said="`split_tensor` is recorded as float32[4, 2] where torch gives float32[4, 3]",
    )
    yield _called(
        x,
        UnregisteredOperator("own.op.default"),
        x,
        said="`unregistered` calls an operator that this process does not have",
    )
    yield _called(
        x,
        aten.mm.default,
        x,
        said="torch does not take `mm_default`: RuntimeError: aten::mm() is missing value for argument 'mat2'. Declaration: aten::mm(Tensor self, Tensor mat2) -> Tensor",
    )


# ------------------------------------------------------------------------------------------------ memory


def _of_memory() -> Iterator[Row]:
    x, turned = tensor((4, 6)), tensor((6, 4), stride=(1, 6))
    lies = "`t_default` lies otherwise in memory than recorded"
    yield _called(turned, aten.t.default, x)
    yield _called(tensor((6, 4)), aten.t.default, x, said=lies)
    yield _called(tensor((6, 4), stride=(1, 5)), aten.t.default, x, said=lies)
    yield _called(tensor((6, 4), stride=(1, 6), offset=1), aten.t.default, x, said=lies)
    narrow = tensor((4, 2), stride=(6, 1), offset=3)
    yield _called(narrow, aten.slice.Tensor, x, 1, 3, 5)
    moved = "`slice_tensor` lies otherwise in memory than recorded"
    yield _called(tensor((4, 2), stride=(6, 1)), aten.slice.Tensor, x, 1, 3, 5, said=moved)
    ranks = {"coordinates": {RANK: 0}, "mesh": Mesh((MeshAxis("dp", 2),), (0, 1))}
    yield _called(tensor((4, 2), stride=(6, 1)), aten.slice.Tensor, x, 1, 3, 5, **ranks)
    yield _called(tensor((4, 2)), aten.slice.Tensor, x, 1, 3, 5, said=moved, **ranks)
    yield _called(tensor((1, 4), stride=(9, 1)), aten.neg.default, tensor((1, 4)))
    yield _called(tensor((0, 4), stride=(9, 9), offset=3), aten.neg.default, tensor((0, 4)))
    yield _called(tensor((2, 1, 4), stride=(4, 9, 1)), aten.neg.default, tensor((2, 1, 4)))
    yield _called(x, aten.neg.default, recorded_tensor((4, 6), F32))
    negative = "a recorded tensor has a negative size, stride or offset"
    for wrong in (tensor((4, 6), stride=(-6, 1)), tensor((4, 6), offset=-1), tensor((-4, 6))):
        yield _called(x, aten.neg.default, wrong, said=negative)
    yield from _reads()


def _reads() -> Iterator[Row]:
    x, turned = tensor((4, 6)), tensor((6, 4), stride=(1, 6))
    read = tensor((2,), stride=(1,))
    for recorded, given, said in (
        (turned, x, ""),
        (tensor((6, 4), stride=(1, 6)), x, ""),
    ):
        w = Written()
        w.call(read, aten.as_strided.default, w.call(recorded, aten.t.default, w.given("x", given)), [2], [1])
        yield Row(w.program(), said)
    # Along a dimension of one element strides decide nothing but for what reads memory.
    for stride, said in (((1, 1), ""), ((9, 1), "`neg_default` lies otherwise in memory: (4, 1) from 0")):
        w = Written()
        inner = w.call(
            tensor((1, 4), stride=(4, 1) if not said else stride), aten.neg.default, w.given("x", tensor((1, 4)))
        )
        w.call(read, aten.as_strided.default, inner, [2], [1])
        yield Row(w.program(), said)
    w = Written()
    ranks = {"coordinates": {RANK: 0}, "mesh": Mesh((MeshAxis("dp", 2),), (0, 1))}
    inner = w.call(tensor((4, 2), stride=(6, 1)), aten.slice.Tensor, w.given("x", x), 1, 3, 5)
    w.call(tensor((2,), stride=(1,)), aten.as_strided.default, inner, [2], [1])
    yield Row(w.program(**ranks), "`slice_tensor` lies otherwise in memory: (6, 1) from 3")


# ------------------------------------------------------------------------------------------------ sizes


def _of_sizes() -> Iterator[Row]:
    yield _called(tensor((S, 4)), aten.neg.default, tensor((S, 4)))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((2 * K, 4)), size_values={S: 2 * K})
    yield _called(
        tensor((K, S)),
        aten.t.default,
        tensor((S, K)),
        said="`t_default` lies otherwise in memory than recorded",
        size_values={S: 2 * K},
    )
    row = _called(tensor((S, K)), aten.neg.default, tensor((S, K)))
    yield Row(row.program, calls=3)
    told = "`neg_default` is recorded as float32[{}, 4] where torch gives float32[{}, 4]"  # the sizes that are tried
    yield _called(tensor((S, 4)), aten.neg.default, tensor((8, 4)), said=told.format(11, 8))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((2, 4)), said=told.format(8, 2))
    sliced = (tensor((8,)), operator.getitem, tensor((20,)), slice(None, number(S)))
    yield _called(*sliced, said="`getitem` is recorded as float32[8] where torch gives float32[11]", guards=(S > 1,))
    few = (sympy.Eq(S, 5), sympy.Eq(K, 5))
    yield Row(_called(tensor((S, K)), aten.neg.default, tensor((5, 5)), guards=few).program, calls=FEW)
    mesh = Mesh((MeshAxis("dp", 2),), (0, 1))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((S, 4)), mesh=mesh)
    w = Written()
    w.call(number(RANK + 1), operator.add, w.given("rank", number(RANK)), 1)
    yield Row(w.program(coordinates={RANK: 0}))
    yield Row(w.program(coordinates={RANK: 0}, mesh=mesh))
    halves = [tensor((S, 3), stride=(6, 1)), tensor((S, 3), stride=(6, 1), offset=3)]
    yield _called(halves, aten.split.Tensor, tensor((4, 6)), 3, 1, guards=(sympy.Eq(S, 4),))
    told = "`split_tensor` is recorded as float32[5, 3] where torch gives float32[4, 3]"
    yield _called(halves, aten.split.Tensor, tensor((4, 6)), 3, 1, said=told, guards=(sympy.Eq(S, 5),))
    none = "no sizes were found that fulfil its guards"
    yield _called(tensor((S, 4)), aten.neg.default, tensor((S, 4)), said=none, guards=(sympy.Eq(S, 1),))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((S, 4)), said=none, guards=(sympy.Ge(S, 2**60),))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((5, 4)), guards=(sympy.Eq(S, 5),))
    wrong = "`neg_default` is recorded as float32[{}, 4] where torch gives float32[5, 4]"
    yield _called(tensor((S, 4)), aten.neg.default, tensor((5, 4)), said=wrong.format(12), guards=(sympy.Eq(S, 12),))
    yield _called(tensor((S, 4)), aten.neg.default, tensor((5, 4)), said=wrong.format(2), guards=(sympy.Eq(S, 2),))
    yield _called(tensor((K, 4)), aten.neg.default, tensor((5, 4)), guards=(sympy.Eq(S, 5),), size_values={K: S})
    for large in (sympy.Ge(S, 5000), sympy.Eq(S % 128, 0), sympy.And(S > 100, S < 110), sympy.And(S > 24, K < 4)):
        yield Row(_called(tensor((S, K)), aten.neg.default, tensor((S, K)), guards=(large,)).program, calls=3)


def _of_refusals() -> Iterator[Row]:
    """Sizes that torch refuses are drawn anew, and what it refuses more often, or on a rank, at all, is refused."""
    x, w, out = tensor((3, 4, S)), tensor((5, 4, K)), tensor((3, 5, S - K + 1))
    options = [1], [0], [1], False, [0], 1
    told = "torch does not take `convolution_default`: RuntimeError: Calculated padded input size per channel: ({}). "
    told += "Kernel size: ({}). Kernel size can't be greater than actual input size"
    for recorded, guards, said in (
        (out, (), ""), (out, (K > S,), told.format(4, 11)), (tensor((3, 5, S - K + 2)), (), "`convolution_default` is recorded as float32[3, 5, 2] where torch gives float32[3, 5, 1]"),
    ):  # fmt: skip
        written = Written()
        given = written.given("x", x), written.given("w", w)
        written.call(recorded, aten.convolution.default, *given, None, *options)
        yield Row(written.program(guards=guards), said)
    mesh = Mesh((MeshAxis("dp", 2),), (0, 1))
    told = "torch does not take `select_int`: IndexError: select(): index 1 out of range for tensor of size [1, 8] at dimension 0"
    for at, size, said in ((1, 1, told), (8, S, "")):
        w = Written()
        place = w.call(number(RANK * at), operator.mul, w.given("rank", number(RANK)), at)
        w.call(tensor((K,)), aten.select.int, w.given("x", tensor((size, K))), 0, place)
        yield Row(w.program(coordinates={RANK: 0}, mesh=mesh), said)


def _of_symbols() -> Iterator[Row]:
    """Sizes of inputs are said to be positive, places of ranks not to be negative, and no other number."""
    size, place = sympy.Symbol("n", integer=True, positive=True), RANK
    mesh = Mesh((MeshAxis("dp", 2),), (0, 1))
    yield _called(tensor((size, 4)), aten.neg.default, tensor((size, 4)))
    yield _called(tensor((2 * size, 4)), aten.neg.default, tensor((K, 4)), size_values={K: 2 * size})
    for symbol in (size, place):
        w = Written()
        w.call(number(symbol + 1), operator.add, w.given("n", number(symbol)), 1)
        yield Row(w.program(), _no_size(str(symbol)))
    w = Written()
    w.call(number(place + 1), operator.add, w.given("n", number(place)), 1)
    yield Row(w.program(coordinates={place: 0}, mesh=mesh))
    for symbol, value, right in (
        (size, S, False), (size, S / 2, False), (place, S, False), (S, K / 2, False), (S, 2 * K, True), (place, sympy.Integer(0), True),
    ):  # fmt: skip
        said = "" if right else f"`{symbol}` is said to be what {value} is not"
        yield _called(tensor((S, K)), aten.neg.default, tensor((S, K)), size_values={symbol: value}, said=said)
    said = "`n` is said to be what -3 is not"
    yield _called(tensor((4, 6)), aten.neg.default, tensor((4, 6)), size_values={size: sympy.Integer(-3)}, said=said)


def _no_size(name: str) -> str:
    return f"`{name}` is said to be a size, and no input has it"


# ------------------------------------------------------------------------------------------------ numbers


def _of_numbers() -> Iterator[Row]:
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 3)), tuple(range(6)))
    for axis, length in ((0, 2), (1, 3)):
        w = Written()
        start = w.given("rank", number(RANK))
        stop = w.call(number(RANK + 1), operator.add, start, 1)
        w.call(tensor((1,), stride=(1,)), aten.slice.Tensor, w.given("x", tensor((length,))), 0, start, stop)
        yield Row(w.program(coordinates={RANK: axis}, mesh=mesh))
    w = Written()
    w.call(number(S + 1), operator.add, w.given("s", number(S)), 1)
    yield Row(w.program())
    w = Written()
    w.given("sizes", [number(S)])
    w.call(tensor((4,)), aten.neg.default, w.given("x", tensor((4,))))
    yield Row(w.program())
    w = Written()
    w.call(number(S + 2), operator.add, w.given("s", number(S)), 1)
    yield Row(w.program(guards=(sympy.Eq(S, 5),)), "`add` is recorded as int 7 where torch gives int 6")
    w = Written()
    w.call(number(S / 2, "SymFloat"), operator.truediv, w.given("s", number(S)), 2)
    yield Row(w.program())
    w = Written()
    w.call(number(S > 3, "SymBool"), operator.gt, w.given("s", number(S)), 3)
    yield Row(w.program())
    w = Written()
    start = w.given("s", number(S))
    stop = w.call(number(S + 2), operator.add, start, 2)
    w.call(tensor((2,), stride=(1,)), operator.getitem, w.given("x", tensor((6,))), slice(start, stop, None))
    yield Row(w.program(guards=(sympy.Eq(S, 3),)), "`getitem` lies otherwise in memory than recorded")
    w = Written()
    half = w.call(number(S / 2), operator.floordiv, w.given("s", number(S)), 2)
    w.call(number(S), operator.mul, half, 2)
    yield Row(w.program(guards=(sympy.Eq(S, 4),)))
    yield Row(w.program(guards=(sympy.Eq(S, 3),)), "3/2 is recorded as a whole number")
    yield from _unknown()


def _unknown() -> Iterator[Row]:
    """Sizes and numbers that depend on what a tensor holds."""
    counted = sympy.Symbol("u", integer=True)
    x = tensor((6,))
    said = "`nonzero_default` is recorded as {} where torch gives int64['?', 1]"
    for shape, dtype, wrong in (
        ((counted, 1), I64, ""),
        ((counted, 2), I64, "2"),
        ((counted, 1), F32, "f"),
        ((counted,), I64, "1"),
    ):
        sizes = {"2": "int64[5, 2]", "f": "float32[5, 1]", "1": "int64[5]"}
        guards = (sympy.Eq(counted, 5),)
        told = said.format(sizes[wrong]) if wrong else ""
        yield _called(tensor(shape, dtype), aten.nonzero.default, x, said=told, guards=guards)
    w = Written()
    w.call(tensor((4,)), aten.neg.default, w.constant("held", torch.ones(4), tensor((S,))))
    told = "`held` is stored, and recorded with symbolic sizes"
    yield Row(w.program(guards=(sympy.Eq(S, 4),)), told)
    said = "`_local_scalar_dense_default` is recorded as {} where torch gives {}"
    value = sympy.Symbol("v", integer=True)
    for kind, read, told in (
        ("SymInt", I64, ""),
        ("SymFloat", F32, ""),
        ("SymInt", F32, said.format("int 5", "SymFloat zuf0")),
        ("SymFloat", I64, said.format("float 5.0", "SymInt u0")),
    ):
        recorded = number(value, kind)
        yield _called(
            recorded, aten._local_scalar_dense.default, tensor((), read), said=told, guards=(sympy.Eq(value, 5),)
        )
    told = said.format("float32[]", "SymFloat zuf0")
    for dtype, number_of in ((F32, "SymFloat zuf0"), (I64, "SymInt u0")):
        wrong = said.format(f"{dtype}[]".replace("torch.", ""), number_of)
        yield _called(tensor((), dtype), aten._local_scalar_dense.default, tensor((), dtype), said=wrong)
    yield _called(tensor(()), aten._local_scalar_dense.default, tensor(()), said=told)
    w = Written()
    rows = w.call(tensor((counted, 1), I64), aten.nonzero.default, w.given("x", x))
    w.call(tensor((counted, 1), I64), aten.neg.default, rows)
    yield Row(w.program())
    w = Written()
    rows = w.call(tensor((counted, 1), I64), aten.nonzero.default, w.given("x", x))
    w.call(tensor((counted, 2), I64), aten.neg.default, rows)
    yield Row(
        w.program(guards=(sympy.Eq(counted, 5),)),
        "`neg_default` is recorded as int64[5, 2] where torch gives int64[5, 1]",
    )


def _of_reads() -> Iterator[Row]:
    """What is read from a tensor is a symbol of its own, and one of what is the same."""
    u, v = sympy.symbols("u v", integer=True)
    read, name = aten._local_scalar_dense.default, "`_local_scalar_dense_default`"
    for recorded in (4, number(2 * u), number(u + 1)):
        written = recorded if isinstance(recorded, int) else recorded.node.expr
        said = f"{name} is recorded as {written}, and reads a number from a tensor"
        yield _called(recorded, read, tensor((), I64), said=said)
    yield _called(number(u), read, tensor((), I64))
    yield _called(number(u), read, tensor((), I64), said=_another("u", name), size_values={u: sympy.Integer(4)})
    ranks = {"coordinates": {RANK: 0}, "mesh": Mesh((MeshAxis("dp", 2),), (0, 1))}
    yield _called(number(RANK), read, tensor((), I64), said=_another("rank", name), **ranks)
    place = torch.ops.device_mesh._runtime_compute_coordinate_on_dim.default
    other = "`_runtime_compute_coordinate_on_dim_default` is recorded as {}, which is no place of a rank"
    for recorded, values, said in (
        (RANK, {}, ""), (u, {u: 2 * RANK}, ""), (1 - RANK, {}, other), (u, {u: 2 * S}, other), (u, {}, other),
        (u, {u: RANK + v}, other),
    ):  # fmt: skip
        w = Written()
        w.call(number(recorded), place)
        yield Row(w.program(size_values=values, **ranks), said.format(recorded))
    for symbol, again, said in ((v, False, ""), (u, True, ""), (u, False, _another("u", f"{name[:-1]}_1`"))):
        w = Written()
        first, other = w.given("x", tensor((), I64)), w.given("y", tensor((), I64))
        w.call(number(u), read, first)
        w.call(number(symbol), read, first if again else other)
        yield Row(w.program(), said)
    w = Written()
    for name_of_operand in "xy":
        w.call(number(u), read, self=w.given(name_of_operand, tensor((), I64)))
    yield Row(w.program(), _another("u", f"{name[:-1]}_1`"))
    w = Written()
    w.given("s", number(u))
    w.call(number(u), read, w.given("x", tensor((), I64)))
    yield Row(w.program(), _another("u", name))
    w = Written()
    given = w.given("x", tensor((), I64))
    w.call(number(u), read, given)
    w.call(tensor((u, 0), I64), aten.nonzero.default, given)
    yield Row(w.program(), _another("u", "`nonzero_default`"))
    count, of = aten.bincount.default, tensor((4,), I64)
    told = "`bincount_default` is recorded as 0, and reads a number from a tensor"
    for size, said in ((2, ""), (u, ""), (0, told)):
        yield _called(tensor((size,), I64), count, of, said=said)
    w = Written()
    w.call(number(u), read, w.given("x", tensor((), I64)))
    w.call(tensor((u,), I64), count, w.given("y", of))
    yield Row(w.program(), _another("u", "`bincount_default`"))
    told = "`nonzero_default` is recorded as 3, and reads a number from a tensor"
    yield _called(tensor((3, 2), I64), aten.nonzero.default, tensor((4, 6)), said=told)
    for other, said in (("m", ""), ("k", _another("u", "`index_tensor_1`"))):
        w = Written()
        masks = {name: w.given(name, tensor((4,), torch.bool)) for name in "mk"}
        x, y = w.given("x", tensor((4, 6))), w.given("y", tensor((4, 6)))
        w.call(tensor((u, 1), I64), aten.nonzero.default, masks["m"])
        w.call(tensor((u, 6)), aten.index.Tensor, x, [masks["m"]])
        w.call(tensor((u, 6)), aten.index.Tensor, y, [masks[other]])
        yield Row(w.program(), said)


def _another(symbol: str, node: str) -> str:
    return f"`{symbol}` is another number than what {node} reads from a tensor"


# ------------------------------------------------------------------------------------------------ kinds of nodes


def _of_kinds() -> Iterator[Row]:
    held = torch.ones(2, 3)
    w = Written()
    w.call(tensor((2, 3)), aten.neg.default, w.constant("c", held, tensor((2, 3))))
    yield Row(w.program())
    w = Written()
    w.constant("c", held, tensor((2, 4)))
    yield Row(w.program(), "`c` is recorded as float32[2, 4] where torch gives float32[2, 3]")
    w = Written()
    w.constant("c", held, tensor((2, 3), stride=(1, 2)))
    yield Row(w.program())
    w = Written()
    w.constant("c", None, None)
    yield Row(w.program())
    w = Written()
    w.given("mesh", StoredObject("mesh"))
    w.call(StoredObject("mesh"), operator.getitem, w.given("all", (StoredObject("mesh"),)), 0)
    yield Row(w.program())
    w = Written()
    group = w.call("", UnregisteredOperator("own.group.default"))
    reduced = w.call(
        tensor((4,)), torch.ops._c10d_functional.all_reduce.default, w.given("x", tensor((4,))), "sum", group
    )
    w.call(tensor((4,)), torch.ops._c10d_functional.wait_tensor.default, reduced)
    yield Row(w.program(groups={group.name: (0,)}))
    yield Row(w.program(groups={group.name: (0,)}), calls=2)
    w = Written()
    w.call(tensor((4, 2)), aten.cat.default, [w.given("x", tensor((2, 2))), w.given("y", tensor((2, 2)))], dim=0)
    yield Row(w.program())
    w = Written()
    drawn = w.call(tensor((4,)), aten.bernoulli.p, w.given("x", tensor((4,))), 0.5)
    drawn.kwargs = {"generator": StoredObject("Generator")}
    yield Row(w.program())
    w = Written()
    w.call(tensor((4,)), aten.full.default, [4], 1.0, device=torch.device("cuda"))
    yield Row(w.program())


# ------------------------------------------------------------------------------------------------ repetition


def _of_repetition() -> Iterator[Row]:
    """Calls that are like one another, of operands of one description, are made once."""
    x = tensor((4, 6))
    w = Written()
    first = w.call(x, aten.neg.default, w.given("x", x))
    second = w.like(first, w.given("y", x))
    w.like(first, w.like(first, second))
    yield Row(w.program(), calls=1, tensors=1)
    w = Written()
    first = w.call(x, aten.neg.default, w.given("x", x))
    w.call(x, aten.abs.default, first)
    yield Row(w.program(), calls=2)
    for other in (tensor((4, 6), I64), tensor((2, 6)), tensor((4, 6), stride=(1, 4))):
        w = Written()
        first = w.call(x, aten.neg.default, w.given("x", x))
        second = w.like(first, w.given("y", other))
        told = "float32[4, 6]"
        given = f"{other.dtype}{list(other.shape)}".replace("torch.", "")
        wrong = f"`{second.name}` is recorded as {told} where torch gives {given}"
        lies = f"`{second.name}` lies otherwise in memory than recorded"
        yield Row(w.program(), lies if given == told else wrong, calls=2)
    halves = [tensor((4, 3), stride=(6, 1)), tensor((4, 3), stride=(6, 1), offset=3)]
    w = Written()
    first = w.call(halves, aten.split.Tensor, w.given("x", x), 3, 1)
    second = w.like(first, w.given("y", x))
    piece = w.call(halves[0], operator.getitem, first, 0)
    w.like(piece, second)
    yield Row(w.program(), calls=2)
    w = Written()
    w.call(halves, aten.split.Tensor, w.given("x", x), 3, 1)
    columns = [tensor((4, 3), stride=(1, 4)), tensor((4, 3), stride=(1, 4), offset=12)]
    other = w.call(columns, aten.split.Tensor, w.given("y", tensor((4, 6), stride=(1, 4))), 3, 1)
    w.call(columns[1], operator.getitem, other, 1)
    yield Row(w.program(), calls=3)
    w = Written()
    first = w.call(tensor((2,)), aten.as_strided.default, w.given("x", x), [2], [1])
    w.like(first, w.given("y", x))
    yield Row(w.program(), calls=1)
    for stride, said in (((6, 1), ""), ((1, 4), "`x` lies otherwise in memory: (6, 1) from 0")):
        w = Written()
        negated = w.call(x, aten.neg.default, w.given("w", x))
        w.call(tensor((2,)), aten.as_strided.default, negated, [2], [1])
        first = w.call(tensor((2,)), aten.as_strided.default, w.given("x", x), [2], [1])
        other = w.call(tensor((4, 6), stride=stride), aten.neg.default, w.given("y", x))
        w.like(first, other)
        yield Row(w.program(), said and f"`{other.name}` lies otherwise in memory than recorded", calls=None if said else 5)
    for other, calls, said in (
        (x, 2, ""),
        (tensor((4, 6), I64), 3, "`{}` is recorded as float32[4, 6] where torch gives int64[4, 6]"),
    ):
        w = Written()
        first = w.call(x, aten.abs.default, w.given("x", x))
        second = w.call(x, aten.neg.default, first)
        for given in (w.given("z", x), w.given("v", other)):
            third = w.like(first, given)
            w.like(second, third)
            w.several(2, given)
        yield Row(w.program(), said.format(third.name), calls=calls)
    for symbolic in (False, True):
        w = Written()
        w.given("s", tensor((S, K)))
        value = tensor((S, K)) if symbolic else x
        first = w.call(value, aten.neg.default, w.given("x", value))
        second = w.like(first, w.given("y", value))
        w.like(first, second)
        w.several(2, second.all_input_nodes[0])
        yield Row(w.program(), calls=3 if symbolic else 1)
    w = Written()  # what is recorded without symbols is one tensor at all choices of sizes
    w.given("s", tensor((S, K)))
    w.call(x, aten.neg.default, w.given("x", x))
    yield Row(w.program(), calls=1, tensors=4)
    counted = sympy.Symbol("u", integer=True)
    w = Written()
    first = w.call(tensor((counted, 2), I64), aten.nonzero.default, w.given("x", x))
    second = w.like(first, w.given("y", x))
    yield Row(w.program(), f"`u` is another number than what `{second.name}` reads from a tensor")
    w = Written()
    for given in (w.given("x", x), w.given("y", x)):
        first = w.call(x, aten.abs.default, given) if given.name == "x" else w.like(first, given)
        second = w.call(second.meta["val"], aten.nonzero.default, first) if given.name == "x" else w.like(second, first)
        w.several(2, given)
    yield Row(w.program(), f"`u` is another number than what `{second.name}` reads from a tensor")
