"""Sizes and numbers of a captured graph read from JSON, and stand-ins for what torch records of a node.

Symbolic sizes are sympy expressions, some of torch's own functions (``FloorDiv``, ``Mod``). A stand-in holds what a
proof reads of a recorded tensor or number, shape, dtype and expression, and computes nothing.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_functions
from torch.utils._sympy.numbers import int_oo

_CONSTANTS: dict[str, sympy.Basic] = {
    str(c): c for c in (sympy.true, sympy.false, sympy.oo, -sympy.oo, sympy.pi, sympy.E, int_oo, -int_oo)
}

KINDS_OF_SYMBOLS: dict[str, dict[str, bool]] = {
    "size": {"integer": True, "positive": True}, "coordinate": {"integer": True, "nonnegative": True},
    "whole": {"integer": True}, "real": {"real": True}, "number": {},
}  # fmt: skip
"""What is known of a symbol. That it is even, say, nothing could tell who reads a certificate."""

_NUMBERS: dict[str, type] = {"SymInt": torch.SymInt, "SymFloat": torch.SymFloat, "SymBool": torch.SymBool}


def expression_from_data(data: Any) -> sympy.Basic:
    """The expression that was written (``written_expressions.py``). Raises ValueError for anything else."""
    if isinstance(data, int):
        return sympy.Integer(data)
    if not isinstance(data, list) or not data:
        raise ValueError("no expression")
    kind, *arguments = data
    if kind == "symbol":
        return sympy.Symbol(str(arguments[0]), **KINDS_OF_SYMBOLS[arguments[1]])
    if kind == "rational":
        return sympy.Rational(*arguments)
    if kind == "float":
        return sympy.Float(arguments[0])
    if kind == "constant":
        return _CONSTANTS[arguments[0]]
    own = str(kind).removeprefix("torch.")
    function: Any = getattr(sympy if own == kind else torch_functions, own, None)
    known = isinstance(function, type) and issubclass(function, sympy.Basic)
    if not known:
        raise ValueError(f"no expression: {kind}")
    return function(*(expression_from_data(argument) for argument in arguments))


def recorded_number(kind: str, expression: sympy.Basic) -> Any:
    """A stand-in for ``torch.SymInt``, ``SymFloat`` or ``SymBool`` that holds an expression."""
    if kind not in _NUMBERS:
        raise ValueError(f"no kind of number: {kind}")
    return _NUMBERS[kind](types.SimpleNamespace(expr=expression))


def recorded_tensor(
    shape: Sequence[Any], dtype: torch.dtype, stride: Sequence[Any] = (), offset: Any = None
) -> torch.Tensor:
    """A stand-in for a recorded tensor; its sizes and strides are numbers or stand-ins for them.

    One without ``offset`` lies nowhere: its layout is not ``torch.strided``.
    """
    tensor = torch.empty(0, dtype=dtype).as_subclass(_RecordedTensor)
    tensor.recorded = tuple(shape)
    tensor.memory = None if offset is None else (tuple(stride), offset)
    return tensor


class _RecordedTensor(torch.Tensor):
    recorded: tuple[Any, ...]
    memory: tuple[tuple[Any, ...], Any] | None
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]  # torch gives this one for it

    @property
    def shape(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - sizes may be expressions
        return self.recorded

    @property
    def layout(self) -> torch.layout:  # pyright: ignore[reportIncompatibleVariableOverride]  # a tensor's, as a value
        return torch.sparse_coo if self.memory is None else torch.strided

    def stride(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # a tensor's, as a value
        return self._lies_at()[0]

    def storage_offset(self) -> Any:
        return self._lies_at()[1]

    def _lies_at(self) -> tuple[tuple[Any, ...], Any]:
        if self.memory is None:
            raise RuntimeError("a recorded tensor that lies nowhere")
        return self.memory
