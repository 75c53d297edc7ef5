"""What calls without a value give, and those of tensors without elements, as rows that mutants must fail."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import sympy
import torch

from tests.certificate.annotations_checks import S, number, tensor
from tests.lemmas.conditions import Check
from tests.lowering.result_checks import sizes_of
from verifycompile.ir.term import TermPool
from verifycompile.lowering.unknowns import unknown_value, without_elements
from verifycompile.program import Blocker
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operations import UNKNOWN

aten = torch.ops.aten
_U = sympy.Symbol("u", integer=True)


_PARTLY = sympy.Piecewise((3, S > 2), (0, True))


def _call(
    recorded: Any, *operands: Any, target: Any = aten.exp.default, given: tuple[Any, ...] = (), **kwargs: Any
) -> Any:
    """A call of operands of which this is recorded."""
    graph: Any = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{k}") for k in range(len(operands))]
    for node, value in zip(nodes, operands, strict=True):
        node.meta["val"] = value
    call = graph.call_function(target, (*nodes,))
    call.meta["val"] = recorded
    object.__setattr__(call, "args", (*call.args, *given))  # as calls are read; torch's setter prints numbers
    object.__setattr__(call, "kwargs", kwargs)
    return call


def _lowering(call: Any, lost: str = "", mesh: tuple[int, ...] = (), side: str = "spec") -> Any:
    """``lost``: what is wrong with the first operand."""
    pool = TermPool()
    values = {node: pool.leaf(node.name, (3,)) for node in call.all_input_nodes}
    blockers = dict[Any, Blocker]()
    for node in call.all_input_nodes[:1]:
        if lost == "not lowered":
            del values[node]
        if "None" in lost:
            values[node] = None  # pyright: ignore[reportArgumentType]
        if "blocked" in lost:
            blockers[node] = Blocker(node, "VC201", "")
    sizes = sizes_of(tensor((S,)), side=side)
    held = {"builder": Builder(pool, mesh), "pool": pool, "side": side, "sizes": sizes, "values": values}
    return SimpleNamespace(**held, blockers=blockers)


_X = tensor((2, 3))
_RECORDED: tuple[tuple[Any, str, Any], ...] = (
    (_call(_X, _X), "", (2, 3)),
    (_call(_X, _X), "blocked", (2, 3)), (_call(_X, _X), "None", (2, 3)),
    (_call(_X, _X), "not lowered", None), (_call(_X, _X), "None, blocked", None),
    (_call(_X, _X, _X), "not lowered", None), (_call(_X, _X, _X), "None, blocked", None),
    (_call(_X), "", (2, 3)), (_call(number(S)), "", None), (_call(None), "", None), (_call(3), "", None),
    (_call(tensor((0, 3)), _X), "", (0, 3)), (_call(tensor((S, 0)), _X), "", (S, 0)),
    (_call(tensor((_PARTLY, 3)), _X), "", None), (_call(tensor((3, _PARTLY)), _X), "", None),
    (_call(tensor((_U,)), _X), "", (sympy.Symbol("spec:u", positive=True),)),
    (_call(_X, _X, target=aten.bincount.default), "", None),
)  # fmt: skip
"""Calls, and the shapes of what stands for them: None where nothing does."""
_FIXED: tuple[tuple[Any, bool], ...] = (
    (_call(_X, _X, given=(3, [4, 5])), True), (_call(_X, _X, dim=[0]), True), (_call(_X, [_X, None, 3]), True),
    (_call(_X, _X, given=(number(S),)), False), (_call(_X, _X, given=([4, number(S)],)), False),
    (_call(_X, _X, dim=[0, number(S)]), False), (_call(_X, tensor((3, S))), False), (_call(_X, tensor((S, 3))), False),
    (_call(_X, [_X, tensor((S, 3))]), False), (_call(_X, number(S, "SymFloat")), False),
    (_call(_X, number(S > 2, "SymBool")), False),
)  # fmt: skip
"""Calls, and whether what is recorded of them is so at all sizes."""


def checks() -> Iterator[tuple[str, Check]]:
    for k, (call, lost, shape) in enumerate(_RECORDED):
        yield f"recorded {k}", functools.partial(_stands, call, lost, shape)
    for k, (call, is_fixed) in enumerate(_FIXED):
        yield f"fixed {k}", functools.partial(_stands, call, "", (2, 3) if is_fixed else None)
        yield f"without elements {k}", functools.partial(_empty, call, "", is_fixed)
    for k, lost in enumerate(("not lowered", "None, blocked")):
        yield f"without elements of nothing {k}", functools.partial(_empty, _call(_X, _X), lost, False)
    yield "several", _several
    yield "equal to nothing", _equal_nothing


def _stands(call: Any, lost: str, shape: Any) -> None:
    found = unknown_value(_lowering(call, lost), call)
    assert (None if found is None else (found.term.operation, found.shape)) == (
        None if shape is None else (UNKNOWN, shape)
    )


def _empty(call: Any, lost: str, is_fixed: bool) -> None:
    lowering = _lowering(call, lost)
    empty = [lowering.builder.full(0, shape) for shape in ((0, 3), (2, 0))]
    assert without_elements(lowering, call, [(0, 3)]) == (empty[0] if is_fixed else None)
    call.meta["val"], before = [_X, _X], call.meta["val"]
    assert without_elements(lowering, call, [(0, 3), (2, 0)]) == (tuple(empty) if is_fixed else None)
    call.meta["val"] = before


def _several() -> None:
    for kind in (list, tuple):
        call = _call(kind([_X, None, tensor((4,)), 5]), _X)
        first, _, third, _ = found = unknown_value(_lowering(call), call)
        assert [None if view is None else view.shape for view in found] == [(2, 3), None, (4,), None]
        assert first.term.attributes != third.term.attributes


def _equal_nothing() -> None:
    """Neither to what the other program does not know, nor to what another rank does not."""
    call = _call(_X, _X)
    spec, own = (unknown_value(_lowering(call, side=side, mesh=(2,)), call) for side in ("spec", "impl"))
    assert spec.shape == own.shape == (2, 2, 3)
    assert spec.term.attributes != own.term.attributes
    assert all(map(spec.uses, range(3)))
