"""Tensors and numbers as torch records them in a graph, made again out of their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

_NUMBERS: dict[str, tuple[type, type]] = {
    "SymInt": (int, torch.SymInt),
    "SymFloat": (float, torch.SymFloat),
    "SymBool": (bool, torch.SymBool),
}


class RecordedValues:
    """Makes the values of one graph. ``hints``: name of a size symbol -> the number that it had at the traced call."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self._hints = hints
        self._environment = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._environment)

    def number(self, kind: str, expression: sympy.Basic) -> Any:
        """A ``SymInt``, ``SymFloat`` or ``SymBool`` of this expression."""
        plain, symbolic = _NUMBERS[kind]
        symbols = [symbol for symbol in expression.free_symbols if isinstance(symbol, sympy.Symbol)]
        for symbol in symbols:
            self._declare(symbol)
        known = {s: self._environment.backed_var_to_val.get(s) for s in symbols}
        hint = None if None in known.values() else plain(expression.xreplace(known))
        return symbolic(SymNode(expression, self._environment, plain, hint))

    def _declare(self, symbol: sympy.Symbol) -> None:
        """Let the environment know a symbol as torch does one that it makes: its range, and its number."""
        if symbol in self._environment.var_to_range:
            return
        lower = 0 if symbol.is_nonnegative or symbol.is_integer else -int_oo
        self._environment.var_to_range[symbol] = ValueRanges(lower, int_oo)
        if str(symbol) in self._hints:
            self._environment.backed_var_to_val[symbol] = sympy.Integer(self._hints[str(symbol)])

    def tensor(self, shape: Sequence[Any], stride: Sequence[Any], offset: Any, dtype: torch.dtype) -> torch.Tensor:
        """A fake tensor of the CPU."""
        with self._mode:
            if isinstance(offset, int) and offset == 0:
                return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
            reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            return torch.empty(offset + reach + 1, dtype=dtype).as_strided(tuple(shape), tuple(stride), offset)


def hints_of(values: Sequence[object]) -> dict[str, int]:
    """The numbers that the size symbols of recorded values had at the traced call, by name."""
    found: dict[str, int] = {}
    for value in values:
        sizes: tuple[Any, ...] = (value,)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            sizes = (*value.shape, *value.stride())
        for size in sizes:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                found[str(size.node.expr)] = int(size.node.hint)
    return found
