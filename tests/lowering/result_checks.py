"""What is refused of the dtypes and shapes of a call and of its results, as rows that mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import sympy
import torch

from tests.certificate.annotations_checks import RANK, K, S, number, tensor
from tests.lemmas.conditions import Check
from verifycompile.ir.term import TermPool
from verifycompile.lowering.checks import casts_of, check_operands, check_result, check_type
from verifycompile.lowering.recorded import dtypes_of
from verifycompile.lowering.sizes import Sizes
from verifycompile.program import Program
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.registry import UnsupportedError
from verifycompile.rewrites.values import Pieces

aten = torch.ops.aten
_REAL, _DOUBLE, _HALF, _COMPLEX = torch.float32, torch.float64, torch.bfloat16, torch.complex64
_WHOLE, _TRUE, _BYTE, _SIGNED = torch.int64, torch.bool, torch.uint8, torch.int8
Dtypes = Mapping[str, torch.dtype]


def _node(target: Any = aten.exp.default, value: Any = None, **kwargs: Any) -> Any:
    return SimpleNamespace(target=target, args=(), kwargs=kwargs, meta={"val": value}, name="n")


def said_by(check: Check, said: str) -> None:
    """``said``: the refusal; none where nothing is refused."""
    found = ""
    try:
        check()
    except UnsupportedError as refusal:
        found = f"{refusal}"
    assert found == said


# -- dtypes

_TYPES: tuple[tuple[Any, Dtypes, str], ...] = (
    (tensor((3,), _COMPLEX), {}, ""), (None, {}, ""), (3, {}, ""), ([None, tensor((3,))], {}, ""),
    (tensor((3,), _SIGNED), {}, "`aten.exp.default` gives a tensor of torch.int8"),
    (tensor((3,), torch.float8_e5m2), {"self": torch.float8_e5m2}, "`aten.exp.default` gives a tensor of torch.float8_e5m2"),
    (tensor((3,), _SIGNED), {"self": _BYTE}, "`aten.exp.default` gives a tensor of torch.int8"),
    (tensor((3,), _SIGNED), {"self": _SIGNED}, ""), (tensor((3,), _SIGNED), {"self": _REAL, "src": _SIGNED}, ""),
    ((tensor((3,)), tensor((3,), _SIGNED)), {}, ""),
    ([tensor((3,)), tensor((3,), _SIGNED)], {}, "`aten.exp.default` gives a tensor of torch.int8"),
    (tensor((S, K)), {}, ""),
    (tensor((S, 2 * RANK + K)), {}, "`aten.exp.default` gives a tensor whose shape depends on the rank"),
    ((tensor((3,)), tensor((RANK,))), {}, "`aten.exp.default` gives a tensor whose shape depends on the rank"),
)  # fmt: skip
_TWO = "torch stops at `{}` with {}: it takes one dtype"
_NO_REAL = "torch stops at `{}` of {}: it takes real numbers"
_OPERANDS: tuple[tuple[Any, Dtypes, bool, str], ...] = (
    (aten.mm.default, {"self": _REAL, "mat2": _REAL}, False, ""), (aten.mm.default, {"self": _REAL}, False, ""),
    (aten.mm.default, {}, False, ""), (aten.mul.Tensor, {"self": _REAL, "other": _DOUBLE}, False, ""),
    (aten.mm.default, {"self": _REAL, "mat2": _DOUBLE}, False,
     _TWO.format("aten.mm.default", "`self` of torch.float32 and `mat2` of torch.float64")),
    (aten.mm.default, {"self": _REAL, "mat2": _HALF}, True, ""),
    (aten.mm.default, {"self": _WHOLE, "mat2": torch.int32}, True,
     _TWO.format("aten.mm.default", "`self` of torch.int64 and `mat2` of torch.int32")),
    (aten.mm.default, {"self": _REAL, "mat2": _WHOLE}, True,
     _TWO.format("aten.mm.default", "`self` of torch.float32 and `mat2` of torch.int64")),
    (aten.linear.default, {"input": _REAL, "weight": _REAL, "bias": _DOUBLE}, False,
     _TWO.format("aten.linear.default", "`input` of torch.float32 and `bias` of torch.float64")),
    (aten.gelu.default, {"self": _HALF}, False, ""), (aten.gelu.default, {}, False, ""),
    (aten.gelu.default, {"self": _COMPLEX}, False, ""), (aten.exp.default, {"self": _WHOLE}, False, ""),
    (aten.gelu.default, {"self": _WHOLE}, False, _NO_REAL.format("aten.gelu.default", _WHOLE)),
    (aten.var.correction, {"self": _TRUE}, True, _NO_REAL.format("aten.var.correction", _TRUE)),
)  # fmt: skip
_COPY, _COPIES = aten.copy.default, aten._foreach_copy.default
_CASTS: tuple[tuple[Any, Dtypes, Mapping[str, Any], list[str]], ...] = (
    (aten._to_copy.default, {"self": _REAL}, {"dtype": _HALF}, ["float32 to bfloat16"]),
    (aten._to_copy.default, {"self": _REAL}, {"dtype": _REAL}, []), (aten._to_copy.default, {}, {"dtype": _REAL}, []),
    (aten._to_copy.default, {"self": _REAL}, {"layout": torch.strided}, []),
    (aten._to_copy.default, {"self": _REAL}, {"dtype": None}, []),
    (aten.to.dtype, {"self": _REAL}, {"dtype": _HALF}, []),
    (_COPY, {"self": _HALF, "src": _REAL}, {}, ["float32 to bfloat16"]), (_COPY, {"self": _HALF, "src": _HALF}, {}, []),
    (_COPY, {"self": _HALF}, {}, []), (_COPY, {"src": _HALF}, {}, []), (aten.add.Tensor, {"self": _HALF, "src": _REAL}, {}, []),
)  # fmt: skip


def _dtypes_of_call() -> None:
    """Those of arguments that are given by their names too; of a list, where all have one."""
    graph: Any = torch.fx.Graph()
    real, whole = graph.placeholder("real"), graph.placeholder("whole")
    real.meta["val"], whole.meta["val"] = tensor((3,)), tensor((3,), _WHOLE)
    for args, kwargs, expected in (
        ((real, whole), {}, {"self": _REAL, "mat2": _WHOLE}),
        ((real,), {"mat2": whole}, {"self": _REAL, "mat2": _WHOLE}),
        ((), {"self": whole, "mat2": 3}, {"self": _WHOLE}),
        (([real, real, 3], [real, whole]), {}, {"self": _REAL}),
    ):
        assert dtypes_of(graph.call_function(aten.mm.default, args, kwargs)) == expected


# -- shapes


def _results() -> Iterator[tuple[Any, Any, str]]:
    """What is declared of a call, what is recorded of it, and what is said."""
    b = Builder(TermPool())
    x, y = b.pool.leaf("x", (4, 6)), b.pool.leaf("y", (S * (K + 1), 6))
    stored, computed = b.pool.leaf("i", (4, 6)), b.pointwise(FUNCTIONS["tanh"], x)
    shape = "`aten.exp.default` has shape {}, its declaration {}"
    yield x, tensor((4, 6)), ""
    yield x, (tensor((4, 6)),), "`aten.exp.default` is declared to give one tensor"
    yield x, None, "`aten.exp.default` is declared to give one tensor"
    for wrong in ((4, 5), (4, 6, 1), (4,), (6, 4), ()):
        yield x, tensor(wrong), shape.format(wrong, "(4, 6)")
    yield b.pool.leaf("z", ()), tensor((0,)), shape.format("(0,)", "()")
    yield y, tensor((S * K + S, 6)), ""
    yield y, tensor((S * K, 6)), shape.format("(k*s, 6)", "(s*(k + 1), 6)")
    yield b.pool.leaf("squares", (S * S - 1,)), tensor(((S - 1) * (S + 1),)), ""
    yield (x, y), (tensor((4, 6)), tensor((S * (K + 1), 6))), ""
    yield (x, y), (tensor((4, 6)), tensor((S, 6))), shape.format("(s, 6)", "(s*(k + 1), 6)")
    yield (x, None, x), (tensor((4, 6)), tensor((1,)), tensor((6, 4))), shape.format("(6, 4)", "(4, 6)")
    yield (x, x, x), (tensor((4, 6)), number(S), None), ""
    yield (x, x), (tensor((4, 6)),), ""
    yield (x,), (tensor((4, 6)), tensor((3,))), ""
    yield (), None, ""
    pieces = Pieces(x, 1, (4, 2))
    yield pieces, [tensor((4, 4)), tensor((4, 2))], ""
    yield pieces, [tensor((4, 4)), tensor((4, 3))], shape.format("(4, 3)", "(4, 2)")
    yield stored, tensor((4, 6), _SIGNED), ""
    yield b.transpose(stored, 0, 1), tensor((6, 4), _BYTE), ""
    said = "`aten.exp.default` computes a tensor of torch.{}"
    yield computed, tensor((4, 6), _SIGNED), said.format("int8")
    yield computed, tensor((4, 6)), ""
    yield stored, tensor((4, 6), torch.float8_e5m2), said.format("float8_e5m2")


def checks() -> Iterator[tuple[str, Check]]:
    for k, (value, dtypes, said) in enumerate(_TYPES):
        call = functools.partial(check_type, _node(value=value), Call(dtypes), {RANK})
        yield f"type {k}", functools.partial(said_by, call, said)
    for k, (target, dtypes, any_precision, said) in enumerate(_OPERANDS):
        call = functools.partial(check_operands, _node(target), Call(dtypes), any_precision=any_precision)
        yield f"operands {k}", functools.partial(said_by, call, said)
    for k, (target, dtypes, kwargs, casts) in enumerate(_CASTS):
        yield f"casts {k}", functools.partial(_casts, _node(target, **kwargs), Call(dtypes), casts)
    several = Call(elements=(Call({"self": _HALF, "src": _REAL}), Call({"self": _REAL, "src": _WHOLE})))
    both = ["float32 to bfloat16", "int64 to float32"]
    yield "casts of several", functools.partial(_casts, _node(_COPIES), several, both)
    yield "dtypes of a call", _dtypes_of_call
    for k, (value, recorded, said) in enumerate(_results()):
        node = _node(value=recorded)
        call = functools.partial(check_result, Builder(TermPool()), sizes_of(tensor((S, K))), node, value)
        yield f"result {k}", functools.partial(said_by, call, said)
    yield "a size that the declaration says", _decided


def _casts(node: Any, call: Call, expected: Sequence[str]) -> None:
    assert list(casts_of(node, call)) == expected


def sizes_of(*inputs: torch.Tensor, side: str = "spec", graph: torch.fx.Graph | None = None, **held: Any) -> Sizes:
    """Those of a program of such inputs."""
    given: Any = tuple(SimpleNamespace(node=SimpleNamespace(meta={"val": value})) for value in inputs)
    module: Any = SimpleNamespace(graph=graph or torch.fx.Graph())
    return Sizes(Program(module, given, (), **held), side)


def _decided() -> None:
    """It is that from then on, where an operator is one that decides it."""
    b, sizes, read = Builder(TermPool()), sizes_of(), tensor((sympy.Symbol("u"),), _WHOLE)
    x, y = b.pool.leaf("x", (5,)), b.pool.leaf("y", (6,))
    for target, value, said in (
        (aten.exp.default, x, "`aten.exp.default` has shape (spec:u,), its declaration (5,)"),
        (aten.bincount.default, x, ""),
        (aten.exp.default, x, ""),
        (aten.bincount.default, y, "`aten.bincount.default` has shape (5,), its declaration (6,)"),
    ):
        said_by(functools.partial(check_result, b, sizes, _node(target, read), value), said)
