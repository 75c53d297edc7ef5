"""What may be known of the symbols of a program, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from verifycompile.certificate.annotations import AnnotationError, expression_of, symbols_of
from verifycompile.lowering.recorded import tensors_of
from verifycompile.program import Program, Role
from verifycompile.torch_interface.operators.derivation import is_derived_number


def check_symbols(program: Program) -> None:
    """No symbol is said not to be negative but sizes of inputs and a rank's places. Raises AnnotationError."""
    given = [node.meta.get("val") for node in program.graph.graph.find_nodes(op="placeholder")]
    held = [n for value in given for tensor in tensors_of(value) for n in tensor.shape if is_derived_number(n)]
    # Of a sum or product of several symbols that is a size, each may be negative.
    sizes = {cast("Any", expression_of(program, number)).as_coeff_Mul()[1] for number in held}
    symbols: set[Any] = {*symbols_of(program)} - sizes
    for symbol in symbols:
        if symbol.is_nonnegative and symbol not in program.coordinates:
            raise AnnotationError(f"`{symbol}` is said to be a size, and no input has it")
    for symbol, value in program.size_values.items():
        for name in ("is_integer", "is_positive", "is_nonnegative"):
            if getattr(symbol, name) and not getattr(value, name):
                raise AnnotationError(f"`{symbol}` is said to be what {value} is not")


def told_sizes(program: Program) -> Iterator[str]:
    """What symbols are taken to be, and sizes and numbers of inputs that are others, if their names do not say so."""
    yield from (f"{symbol} is {value}" for symbol, value in program.size_values.items())
    first: dict[Any, str] = {}
    for name, number in sorted(_numbers(program), key=lambda item: ".size(" not in item[0]):
        expression: Any = number.node.expr
        known = first.setdefault(expression, name if expression.is_Symbol else str(expression))
        if known != name:
            yield f"{name} is {known}"


def _numbers(program: Program) -> Iterator[tuple[str, Any]]:
    """The symbolic sizes of inputs, and those that are numbers; those of a cotangent are its output's."""
    for item in program.inputs:
        value = item.node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) and item.role is not Role.TANGENT else ()
        named = [(f"{item.name}.size({dim})", size) for dim, size in enumerate(sizes)]
        yield from ((name, size) for name, size in (*named, (item.name, value)) if isinstance(size, torch.SymInt))
