"""What is asked of operators and their calls where programs are captured, written and evaluated."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from verifycompile.torch_interface.operators.schema import names_of


def is_overload(target: object) -> bool:
    """Whether ``target`` is one overload of an operator, such as ``torch.ops.aten.mm.default``."""
    return isinstance(target, torch._ops.OpOverload)


def by_name(target: object, args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call of an operator is given, by their names in the schema."""
    return {**dict(zip(names_of(target), args, strict=False)), **kwargs}


@functools.cache
def is_pointwise(target: object) -> bool:
    """Whether torch calls an operator one of single elements: each of the result is of those at the same place."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


@functools.cache
def number_arguments(target: object) -> frozenset[str]:
    """Names of the arguments that an operator calculates with: scalars and tensors, alone, optional or in lists."""
    if not isinstance(target, torch._ops.OpOverload):
        return frozenset()
    return frozenset(a.name for a in target._schema.arguments if _element(a.type) in _CALCULATES)


_CALCULATES = ("NumberType", "FloatType", "TensorType")
"""Types of arguments that may be numbers of the computation: a graph also has a number where a tensor is asked for."""


def _element(kind: Any) -> str:
    while kind.kind() in ("OptionalType", "ListType"):
        kind = kind.getElementType()
    return str(kind.kind())
