"""Tensors whose elements are expressions.

Such a tensor holds the numbers of its elements' expressions as whole numbers. What only moves elements is done by
torch's own operator on these numbers, so that no layout operator is described a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from verifycompile.symbolic.expressions import Expressions
from verifycompile.torch_interface.dtensor.wrapped import without_storage


class SymbolicTensor(torch.Tensor):
    """``numbers``: of the expression of each element, in ``pool``."""

    numbers: torch.Tensor
    pool: Expressions

    def __new__(cls, pool: Expressions, numbers: torch.Tensor, dtype: torch.dtype) -> Self:
        made = without_storage(cls, numbers.shape, dtype)
        made.numbers, made.pool = numbers.contiguous(), pool
        return made

    def __init__(self, pool: Expressions, numbers: torch.Tensor, dtype: torch.dtype) -> None:
        """All is done by ``__new__``, as for every tensor with a wrapper."""

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes `tensor_contents`
        return f"SymbolicTensor({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from verifycompile.symbolic.operators import apply

        return apply(func, args, kwargs or {})


def symbolic(pool: Expressions, value: torch.Tensor) -> SymbolicTensor:
    """A tensor of numbers as one of expressions."""
    if isinstance(value, SymbolicTensor):
        return value
    numbers = [pool.literal(float(item)) for item in value.reshape(-1).tolist()]
    return SymbolicTensor(pool, torch.tensor(numbers, dtype=torch.int64).reshape(value.shape), value.dtype)


def variables(pool: Expressions, name: str, value: torch.Tensor) -> SymbolicTensor:
    """A variable for every element of an input."""
    numbers = [pool.variable(name, position) for position in range(value.numel())]
    return SymbolicTensor(pool, torch.tensor(numbers, dtype=torch.int64).reshape(value.shape), value.dtype)


def elementwise(
    pool: Expressions, function: Callable[..., int], operands: Sequence[torch.Tensor], dtype: torch.dtype
) -> SymbolicTensor:
    """A function of one element of each operand."""
    numbers = torch.broadcast_tensors(*(symbolic(pool, operand).numbers for operand in operands))
    shape = numbers[0].shape
    columns = [column.reshape(-1).tolist() for column in numbers]
    known: dict[tuple[int, ...], int] = {}
    result: list[int] = []
    for row in zip(*columns, strict=True):
        found = known.get(row)
        if found is None:
            found = known[row] = function(*row)
        result.append(found)
    return SymbolicTensor(pool, torch.tensor(result, dtype=torch.int64).reshape(shape), dtype)


def tensor_of(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def dtype_of(*values: Any) -> torch.dtype:
    return next((v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()), torch.float64)
