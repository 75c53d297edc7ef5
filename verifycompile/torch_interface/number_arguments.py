"""Which arguments of an operator are numbers of its computation."""

from __future__ import annotations

import functools
from typing import Any

import torch


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
