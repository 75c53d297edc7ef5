"""Operators of other libraries, recognised by what they compute.

A custom operator is opaque: it has a schema and kernels, no equations. Where it gives, on random inputs of many shapes,
exactly what a known function gives, it is read as that function; the report lists this as an assumption. An
operator that matches none stays unknown.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from verifycompile.assumption import Assumption, AssumptionKind
from verifycompile.ir.term import View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.grouped import grouped_outer_product, grouped_product
from verifycompile.rewrites.rows.row_layout import transpose
from verifycompile.rewrites.rows.row_values import Counts, Ragged
from verifycompile.rewrites.rows.sorted_rows import grouped_product_of_rows
from verifycompile.torch_interface.operators.custom import is_custom, run_custom

Tensors = tuple[torch.Tensor, ...]
Views = tuple[View, ...]

TRIALS = 12


@dataclasses.dataclass(frozen=True)
class KnownFunction:
    """A function of tensors alone. ``sample``: inputs from a generator and the number of the trial.

    ``of_rows``: of rows of which the number, or the order, is read from data.
    """

    name: str
    sample: Callable[[torch.Generator, int], Tensors]
    reference: Callable[..., Tensors]
    declared: Callable[..., Views]
    of_rows: Callable[..., tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Recognised:
    """A custom operator read as ``function``."""

    operator: str
    function: KnownFunction

    @property
    def assumption(self) -> str:
        text = f"operator `{self.operator}` is {self.function.name}: equal to it on {TRIALS} random inputs"
        return Assumption(text, AssumptionKind.OPERATOR)

    def call(self, b: Builder, arguments: Sequence[View]) -> View | Views:
        """The result on ``arguments``, in the order of the schema."""
        results = self.function.declared(b, *arguments)
        b.pool.assumptions[self.assumption] = None
        return results[0] if len(results) == 1 else results

    def call_of_rows(self, b: Builder, counts: Counts, arguments: Sequence[Any]) -> Any:
        """The result where some of the arguments are rows of which the number, or the order, is read from data."""
        results = self.function.of_rows(b, counts, *arguments)
        b.pool.assumptions[self.assumption] = None
        return results[0] if len(results) == 1 else results


@functools.cache
def recognise(target: object) -> Recognised | None:
    """The known function that a custom operator computes, None where there is none."""
    if not is_custom(target):
        return None
    for function in KNOWN:
        if all(_agrees(target, function, trial) for trial in range(TRIALS)):
            return Recognised(str(target), function)
    return None


def _agrees(target: object, function: KnownFunction, trial: int) -> bool:
    generator = torch.Generator().manual_seed(trial)
    results = run_custom(target, lambda: function.sample(generator, trial), function.reference)
    if results is None:
        return False
    found, expected = results
    return len(found) == len(expected) and all(
        got.shape == wanted.shape and got.dtype == wanted.dtype and torch.allclose(got, wanted, rtol=1e-9, atol=1e-12)
        for got, wanted in zip(found, expected, strict=True)
    )


# ------------------------------------------------------------------------------------------------ grouped products


def _sizes(generator: torch.Generator, trial: int) -> tuple[int, int, int, int, torch.Tensor]:
    """Groups, rows, inner and outer width, ends of the groups; groups may be empty, rows may lie behind the last."""
    groups, rows = (1, 2, 3, 5)[trial % 4], (6, 1, 9)[trial % 3]
    highest = rows if trial % 2 else rows + 1
    ends = torch.randint(0, highest, (groups,), generator=generator).sort().values
    if trial % 2:
        ends[-1] = rows
    return groups, rows, 2 + trial % 3, 3 + trial % 2, ends.to(torch.int32)


def _real(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _product_inputs(generator: torch.Generator, trial: int) -> Tensors:
    groups, rows, inner, outer, ends = _sizes(generator, trial)
    return _real(generator, rows, inner), _real(generator, groups, inner, outer), ends


def _product_inputs_transposed(generator: torch.Generator, trial: int) -> Tensors:
    rows, matrices, ends = _product_inputs(generator, trial)
    return rows, matrices.transpose(1, 2).contiguous(), ends


def _gradient_inputs(generator: torch.Generator, trial: int) -> Tensors:
    groups, rows, inner, outer, ends = _sizes(generator, trial)
    return (
        _real(generator, rows, inner),
        _real(generator, groups, inner, outer),
        ends,
        _real(generator, rows, outer),
    )


def _product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> Tensors:
    result = rows.new_zeros(rows.shape[0], matrices.shape[2])
    start = 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        result[start:end] = rows[start:end] @ matrix
        start = end
    return (result,)


def _gradients(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor, gradient: torch.Tensor) -> Tensors:
    per_group: list[torch.Tensor] = []
    start = 0
    for end in ends.tolist():
        per_group.append(rows[start:end].T @ gradient[start:end])
        start = end
    return (*_product(gradient, matrices.transpose(1, 2), ends), torch.stack(per_group))


def _declared_product(b: Builder, rows: View, matrices: View, ends: View) -> Views:
    return (grouped_product(b, rows, matrices, ends),)


def _declared_gradients(b: Builder, rows: View, matrices: View, ends: View, gradient: View) -> Views:
    transposed = b.transpose(matrices, 1, 2)
    return grouped_product(b, gradient, transposed, ends), grouped_outer_product(b, rows, gradient, ends)


def _product_of_rows(b: Builder, counts: Counts, rows: Any, matrices: Any, ends: Any) -> tuple[Any, ...]:
    return (_grouped(b, counts, rows, matrices, ends),)


def _grouped(b: Builder, counts: Counts, rows: Any, other: Any, ends: Any) -> Any:
    return grouped_product_of_rows(b, counts, rows, other, ends, zeros_behind=True)


def _gradients_of_rows(
    b: Builder, counts: Counts, rows: Any, matrices: Any, ends: Any, gradient: Any
) -> tuple[Any, ...]:
    turned = transpose(b, counts, rows, 0, 1) if isinstance(rows, Ragged) else rows
    inner = _grouped(b, counts, gradient, _transposed(b, matrices), ends)
    return inner, _grouped(b, counts, turned, gradient, ends)


def _transposed(b: Builder, matrices: Any) -> Any:
    return b.transpose(matrices, 1, 2) if isinstance(matrices, View) else matrices


KNOWN = (
    KnownFunction("a grouped matrix product", _product_inputs, _product, _declared_product, _product_of_rows),
    KnownFunction(
        "a grouped matrix product with transposed matrices",
        _product_inputs_transposed,
        lambda rows, matrices, ends: _product(rows, matrices.transpose(1, 2), ends),
        lambda b, rows, matrices, ends: _declared_product(b, rows, b.transpose(matrices, 1, 2), ends),
        lambda b, counts, rows, matrices, ends: _product_of_rows(b, counts, rows, _transposed(b, matrices), ends),
    ),
    KnownFunction(
        "the gradient of a grouped matrix product",
        _gradient_inputs,
        _gradients,
        _declared_gradients,
        _gradients_of_rows,
    ),
)
