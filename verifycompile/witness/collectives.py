"""Functional collectives on the values that the ranks of one group hold: see ``verifycompile/collectives.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verifycompile.collectives import COLLECTIVES, Arguments, CollectiveError
from verifycompile.witness.error import EvaluationError
from verifycompile.witness.layout import reduce


def is_collective(name: str) -> bool:
    """Whether the operator's value on a rank depends on the other ranks, as far as torch's operators do."""
    namespace = name.partition(".")[0]
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem") or name.startswith(
        "_dtensor.shard_dim_alltoall"
    )


def is_wait(name: str) -> bool:
    """Whether the operator returns its argument."""
    return name in ("_c10d_functional.wait_tensor.default", "_c10d_functional._wrap_tensor_autograd.default")


class _Tensors:
    """Tensors as values that collectives take."""

    def shape(self, value: torch.Tensor) -> Sequence[int]:
        return value.shape

    def as_row(self, value: torch.Tensor) -> torch.Tensor:
        return value.reshape(1)

    def join(self, values: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
        return torch.cat(list(values), dim)

    def part(self, value: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
        return value.narrow(dim, start, length).clone()

    def reduce(self, values: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
        return reduce(values, operation.lower())


def evaluate(name: str, arguments: Arguments) -> Sequence[object]:
    """One result a rank of the group. Raises :class:`EvaluationError` for a collective without an interpretation."""
    operator = name.split(".")[1].removesuffix("_")
    is_coalesced = operator.endswith("_coalesced")
    operator = operator.removesuffix("_coalesced")
    if operator not in COLLECTIVES:
        raise EvaluationError(f"no interpretation of the collective {name}")
    if not is_coalesced:
        return _values(operator, [row["input"] for row in arguments], arguments)
    given = [_sequence(row["inputs"]) for row in arguments]
    columns = [_values(operator, column, arguments) for column in zip(*given, strict=True)]
    return [[column[rank] for column in columns] for rank in range(len(arguments))]


def _values(operator: str, values: Sequence[Any], arguments: Sequence[Mapping[str, Any]]) -> Sequence[torch.Tensor]:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != len(values) or len({tuple(value.shape[1:]) for value in tensors}) != 1:
        raise EvaluationError("the ranks of a group pass values that do not fit each other")
    try:
        return COLLECTIVES[operator](_Tensors(), tensors, arguments)
    except CollectiveError as error:
        raise EvaluationError(error.message) from error


def _sequence(value: object) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise EvaluationError("a coalesced collective without a list of tensors")
    return value
