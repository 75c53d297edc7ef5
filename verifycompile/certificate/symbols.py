"""What may be known of the symbols of a program, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from verifycompile.certificate.annotations import AnnotationError, expression_of, symbols_of
from verifycompile.lowering.recorded import tensors_of
from verifycompile.program import Program
from verifycompile.torch_interface.derivation import is_derived_number


def check_symbols(program: Program) -> None:
    """No symbol is said not to be negative but sizes of inputs and a rank's places. Raises AnnotationError."""
    given = [node.meta.get("val") for node in program.graph.graph.find_nodes(op="placeholder")]
    held = [n for value in given for tensor in tensors_of(value) for n in tensor.shape if is_derived_number(n)]
    sizes = {symbol for number in held for symbol in expression_of(program, number).free_symbols}
    symbols: set[Any] = {*symbols_of(program)} - sizes
    for symbol in symbols:
        if symbol.is_nonnegative and symbol not in program.coordinates:
            raise AnnotationError(f"`{symbol}` is said to be a size, and no input has it")
    for symbol, value in program.size_values.items():
        for name in ("is_integer", "is_positive", "is_nonnegative"):
            if getattr(symbol, name) and not getattr(value, name):
                raise AnnotationError(f"`{symbol}` is said to be what {value} is not")


def told_sizes(program: Program) -> Iterator[str]:
    """What symbols are taken to be, and numbers among the inputs that are sizes there, if their names do not say so."""
    yield from (f"{symbol} is {value}" for symbol, value in program.size_values.items())
    names: dict[Any, list[str]] = {}
    recorded = [(item.name, item.node.meta.get("val")) for item in program.inputs]
    for name, value in recorded:
        sizes = value.shape if isinstance(value, torch.Tensor) else ()
        for dim, size in ((dim, size) for dim, size in enumerate(sizes) if isinstance(size, torch.SymInt)):
            names.setdefault(size.node.expr, []).append(f"{name}.size({dim})")
    for name, value in recorded:
        known = names.get(value.node.expr, [name]) if isinstance(value, torch.SymInt) else [name]
        if name not in known:
            yield f"{name} is {known[0]}"
