"""Symbolic sizes and guards of a trace."""

from __future__ import annotations

import sympy
import torch

from verifycompile.torch_interface.dynamo.frames import TracedFrame, frame_of_call, trace_frame
from verifycompile.torch_interface.operators.shapes import (
    divisor_in,
    mark_dynamic,
    shape_of,
    size_of,
    symbol_of,
    trace_guards,
)


def test_symbolic_shapes_and_guards() -> None:
    x = torch.ones(6, 4)
    mark_dynamic(x, 0)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 4) if x.shape[0] % 2 == 0 else x

    def use(traced: TracedFrame) -> None:
        example = traced.graph.graph.find_nodes(op="placeholder")[-1].meta["example_value"]
        rows, columns = shape_of(example)
        assert isinstance(rows, sympy.Symbol)
        assert columns == 4
        assert symbol_of(example.shape[0]) is rows
        assert (rows, 2) in [divisor_in(guard) for guard in trace_guards(traced.context)]

    trace_frame(frame_of_call(function, (x,), {}), use)


def test_static_sizes() -> None:
    assert shape_of(torch.ones(2, 3)) == (2, 3)
    assert size_of(5) == 5
    assert symbol_of(5) is None


def test_divisors() -> None:
    size = sympy.Symbol("s", integer=True, positive=True)
    assert divisor_in(sympy.Eq(sympy.Mod(size, 4), 0)) == (size, 4)
    assert divisor_in(sympy.Eq(sympy.Mod(2 * size, 4, evaluate=False), 0, evaluate=False)) == (size, 2)
    assert divisor_in(sympy.Ne(sympy.Mod(size, 4), 0)) is None
    assert divisor_in(sympy.Ge(size, 4)) is None
