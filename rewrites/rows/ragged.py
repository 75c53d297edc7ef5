"""Tensors of a size that the program reads from data: tokens of one expert, places where a mask holds.

Such a tensor is some rows, in order, of a tensor whose size is known: the rows at which an indicator is one. What works
on every row alone works on all of them; a sum over rows, or a product that contracts them, takes the indicator as a
factor. Operators not declared here are unsupported on such tensors: what an operator does to rows that are not there
must be known.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from verifycompile.ir.pieces import concatenated_dim
from verifycompile.ir.size import Size
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.registry import (
    UNREPRESENTABLE,
    Declaration,
    Handler,
    UnsupportedError,
    bind,
    declaration_of,
    note_use,
)
from verifycompile.rewrites.rows.row_values import Counts, Filled, Ragged
from verifycompile.rewrites.rows.rows import parts_of_table, require
from verifycompile.torch_interface.operators.calls import is_pointwise

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

_HANDLERS: dict[object, Declaration] = {}
_POINTWISE_BESIDES = frozenset(
    {
        aten._to_copy.default, aten.detach.default, aten.alias.default, aten.zeros_like.default,
        aten.ones_like.default, aten.full_like.default, aten.floor_divide.default, aten.floor_divide.Scalar,
        aten.clone.default,
    }
)  # fmt: skip
"""Work row by row without torch's tag for it."""

_REPLACED: dict[object, dict[str, int]] = {
    aten.masked_fill.Scalar: {"self": 1},
    aten.masked_fill.Tensor: {"self": 1},
    aten.where.self: {"self": 0, "other": 1},
}
"""For each operand that a mask may replace, where the mask does."""


def ragged(*targets: object) -> Callable[[Handler], Handler]:
    """Register a handler ``(builder, counts, arguments by their schema names) -> Ragged | View | Filled``."""

    def register(handler: Handler) -> Handler:
        names = frozenset(list(inspect.signature(handler).parameters)[2:])
        location = f"{handler.__code__.co_filename}:{handler.__code__.co_firstlineno}"
        for target in targets:
            _HANDLERS[target] = Declaration(target, handler, names, location)
        return handler

    return register


def ragged_declarations() -> Mapping[object, Declaration]:
    """All declarations, by target."""
    return dict(_HANDLERS)


def call_ragged(b: Builder, counts: Counts, target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator with ragged operands, sizes or results."""
    declaration = _HANDLERS.get(target)
    if declaration is not None:
        note_use(declaration)
        return declaration.handler(b, counts, **bind(declaration, args, kwargs))
    plain = declaration_of(target)
    if plain is not None and (is_pointwise(target) or target in _POINTWISE_BESIDES):
        return _pointwise(b, counts, plain, bind(plain, args, kwargs))
    raise UnsupportedError(UNREPRESENTABLE, f"`{target}` on a dimension whose size is read from a tensor")


def _pointwise(b: Builder, counts: Counts, declaration: Declaration, bound: dict[str, Any]) -> Ragged:
    operands = [value for value in bound.values() if isinstance(value, Ragged)]
    require(bool(operands), f"`{declaration.target}` makes")
    first = operands[0]
    from_end = first.dim - b.rank(first.view)
    rows = dataclasses.replace(first.rows, defined=None)
    for operand in operands:
        same = dataclasses.replace(operand.rows, defined=None) == rows
        aligned = operand.dim - b.rank(operand.view) == from_end
        require(same and aligned, f"`{declaration.target}` pairs other rows along")
    for value in bound.values():
        if isinstance(value, View) and b.rank(value) >= -from_end:
            require(b.shape(value)[from_end] == 1, f"`{declaration.target}` pairs other rows along")
        require(not isinstance(value, (sympy.Basic, Filled)), f"`{declaration.target}` computes with the size of")
    spans = parts_of_table(counts, rows) if are_in_parts(b, operands) else [(0, rows.total)]
    results = [_for_rows(b, declaration, bound, from_end, start, size) for start, size in spans]
    dim = b.rank(results[0]) + from_end
    view = results[0] if len(results) == 1 else b.concatenate(results, dim)
    return Ragged(view, dim, dataclasses.replace(rows, defined=_defined(b, declaration, bound, spans)))


def are_in_parts(b: Builder, values: Sequence[Ragged]) -> bool:
    """Whether some are written as parts of their table, one after the other."""
    return any(concatenated_dim(value.view) == b.dim(value.view, value.dim) for value in values)


def _for_rows(
    b: Builder, declaration: Declaration, bound: dict[str, Any], from_end: int, start: Size, size: Size
) -> View:
    """The operator on some consecutive rows of the table."""
    whole = {
        name: b.narrow(value.view, value.dim, start, size) if isinstance(value, Ragged) else value
        for name, value in bound.items()
    }
    shapes = [b.shape(value) for value in whole.values() if isinstance(value, View)]
    rank = max(map(len, shapes))
    shape = tuple(next((s[k] for s in shapes if len(s) >= -k and s[k] != 1), 1) for k in range(-rank, 0))
    b.call = dataclasses.replace(b.call, shape=shape)
    return declaration.handler(b, **whole)


def _defined(
    b: Builder, declaration: Declaration, bound: dict[str, Any], spans: Sequence[tuple[Size, Size]]
) -> Size | None:
    """How many rows have a value, where not all: those that all operands have, and those that a mask replaces."""
    undefined = {n: v for n, v in bound.items() if isinstance(v, Ragged) and v.rows.defined is not None}
    if not undefined:
        return None
    (defined,) = {value.rows.defined for value in undefined.values()}
    replaced = _REPLACED.get(declaration.target, {})
    mask = bound.get("mask", bound.get("condition"))
    if len(spans) == 2 and isinstance(mask, Ragged) and len(undefined) == 1 and spans[1][0] == defined:
        (name,) = undefined
        behind = b.narrow(mask.view, mask.dim, *spans[1])
        wanted = b.full(replaced[name], b.shape(behind)) if name in replaced else None
        if behind == wanted:
            return None
    return defined
