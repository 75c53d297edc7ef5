"""Declarations at symbolic sizes: the view, with numbers for the symbols, is what torch computes at these sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.validate import validate
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.registry import UnsupportedError, bind, declaration_of
from verifycompile.rewrites.values import Pieces

aten = torch.ops.aten
s, t = sympy.symbols("s t", positive=True, integer=True)
NUMBERS = [{s: 2, t: 3}, {s: 5, t: 4}]

CALLS: list[tuple[Any, list[tuple[Any, ...]], Callable[[], tuple[Any, ...]]]] = [
    (aten.mm.default, [(s, 4), (4, t)], lambda: ()),
    (aten.mm.default, [(2 * s, t), (t, 3)], lambda: ()),
    (aten.sum.dim_IntList, [(s, 4, t)], lambda: ([0, 2],)),
    (aten.mean.dim, [(s, 4, t)], lambda: ([0, 2], True)),
    (aten.mean.default, [(s, 4)], lambda: ()),
    (aten._softmax.default, [(s, t)], lambda: (1, False)),
    (aten.native_layer_norm.default, [(s, t, 4), (4,), (4,)], lambda: ()),
    (aten.view.default, [(s, 6)], lambda: ([s, 2, 3],)),
    (aten.view.default, [(s, 6)], lambda: ([6 * s],)),
    (aten.view.default, [(2 * s, 6)], lambda: ([-1, 12],)),
    (aten.view.default, [(s, t, 4)], lambda: ([s * t, 4],)),
    (aten.transpose.int, [(s, t)], lambda: (0, 1)),
    (aten.expand.default, [(s, 1)], lambda: ([s, t],)),
    (aten.slice.Tensor, [(2 * s, 4)], lambda: (0, 0, s)),
    (aten.slice.Tensor, [(2 * s, 4)], lambda: (0, s, 2**63 - 1)),
    (aten.slice.Tensor, [(3 * s, 4)], lambda: (0, s, 2 * s)),
    (aten.split.Tensor, [(3 * s, 4)], lambda: (s, 0)),
    (aten.repeat.default, [(s, 2)], lambda: ([2, 3],)),
    (aten.add.Tensor, [(s, t), (t,)], lambda: ()),
    (aten.mse_loss.default, [(s, t), (s, t)], lambda: ()),
]


def substituted(value: Any, numbers: dict[sympy.Symbol, int]) -> Any:
    if isinstance(value, sympy.Expr):
        return int(value.subs(numbers))
    if isinstance(value, (list, tuple)):
        return type(value)(substituted(v, numbers) for v in value)
    return value


@pytest.mark.parametrize(("target", "shapes", "rest"), CALLS, ids=lambda v: str(v) if hasattr(v, "_schema") else "")
@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_symbolic(
    target: Any, shapes: list[tuple[Any, ...]], rest: Callable[[], tuple[Any, ...]], numbers: dict[sympy.Symbol, int]
) -> None:
    pool = TermPool()
    builder = Builder(pool)
    leaves = {f"x{k}": torch.randn(substituted(shape, numbers), dtype=torch.float64) for k, shape in enumerate(shapes)}
    views = [pool.leaf(f"x{k}", shape) for k, shape in enumerate(shapes)]
    args, tensors = [*views, *rest()], [*leaves.values(), *substituted(rest(), numbers)]
    if target is aten.native_layer_norm.default:
        args, tensors = [views[0], [4], *views[1:], 1e-5], [tensors[0], [4], *tensors[1:3], 1e-5]
    builder.call = Call({"self": torch.float64, "input": torch.float64}, dtype=torch.float64)
    declaration = declaration_of(target)
    assert declaration is not None
    result = declaration.handler(builder, **bind(declaration, args, {}))
    expected = target(*tensors)
    if isinstance(result, Pieces):
        result = [builder.narrow(result.view, 0, s * k, s) for k in range(len(result))]
    evaluator = Evaluator(leaves, numbers)
    pairs = zip(result, expected, strict=True) if isinstance(result, (tuple, list)) else [(result, expected)]
    for view, tensor in pairs:
        assert isinstance(view, View)
        validate(view)
        torch.testing.assert_close(evaluator.view(view), tensor)
    validate_pool(pool)


def test_what_depends_on_the_number_is_refused() -> None:
    pool = TermPool()
    builder = Builder(pool)
    x = pool.leaf("x", (s, 4))
    for target, args, message in (
        (aten.slice.Tensor, (x, 0, 0, 3), "a slice to 3 of a dimension of symbolic size s"),
        (aten.slice.Tensor, (x, 0, 0, s, 2), "a slice with step 2 of symbolic size"),
        (aten.split.Tensor, (x, 3, 0), "a split of s into pieces of 3"),
        (aten.unbind.int, (x, 0), "unbind of symbolic size s"),
        (aten.view.default, (x, [-1, 8]), "a view of shape [-1, 8] whose free size is no whole number"),
    ):
        declaration = declaration_of(target)
        assert declaration is not None
        with pytest.raises(UnsupportedError) as refused:
            declaration.handler(builder, **bind(declaration, args, {}))
        assert refused.value.message == message
