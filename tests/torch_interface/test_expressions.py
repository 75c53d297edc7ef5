"""Expressions of sizes come back as they were; stand-ins have what a proof reads of a recorded value."""

from __future__ import annotations

import json

import pytest
import sympy
import torch
from torch.utils._sympy.functions import CeilToInt, FloorDiv, Mod

from verifycompile.torch_interface.operators.expressions import expression_from_data, recorded_number, recorded_tensor
from verifycompile.torch_interface.operators.written_expressions import expression_to_data

S = sympy.Symbol("s0", integer=True, positive=True)
U = sympy.Symbol("u0", integer=True, nonnegative=True)


@pytest.mark.parametrize(
    "expression",
    [
        sympy.Integer(4), S, 4 * S + U, S**2, sympy.Rational(2, 3) * S, FloorDiv(S, 3), Mod(S + 1, 5), CeilToInt(S / 2),
        sympy.Eq(Mod(S, 2), 0), sympy.Ge(S, 2), sympy.true, sympy.oo, sympy.Max(S, 3), sympy.Float(0.5) * S,
    ],
    ids=str,
)  # fmt: skip
def test_round_trip(expression: sympy.Basic) -> None:
    data = json.loads(json.dumps(expression_to_data(expression)))
    assert expression_from_data(data) == expression


@pytest.mark.parametrize("data", [[], {}, ["os"], ["sympify", 3], "s0", ["Symbol.__init__", 3]])
def test_other_data_is_no_expression(data: object) -> None:
    with pytest.raises(ValueError, match="no expression"):
        expression_from_data(data)


def test_stand_ins() -> None:
    size = recorded_number("SymInt", 4 * S)
    assert isinstance(size, torch.SymInt)
    assert size.node.expr == 4 * S
    tensor = recorded_tensor((size, 3), torch.bfloat16)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype is torch.bfloat16
    assert tuple(tensor.shape)[1] == 3
    with pytest.raises(ValueError, match="no kind of number: int"):
        recorded_number("int", S)
