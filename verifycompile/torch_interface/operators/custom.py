"""Custom operators: those that a library registers with ``torch.library``, run on real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verifycompile.torch_interface.operators.elements import real_tensors

_OF_TORCH = frozenset(
    {"aten", "prim", "prims", "inductor", "quantized", "rngprims", "debugprims", "device_mesh", "symm_mem"}
)

Tensors = tuple[torch.Tensor, ...]


def is_custom(target: object) -> bool:
    """Whether ``target`` is a functional operator of tensors alone that is not torch's own."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in _OF_TORCH or target.namespace[0] == "_":
        return False
    schema = target._schema
    tensors = all(str(argument.type) == "Tensor" for argument in schema.arguments)
    return tensors and bool(schema.arguments) and not schema.is_mutable and "c10d" not in target.namespace


def run_custom(
    target: object, sample: Callable[[], Tensors], reference: Callable[..., Tensors]
) -> tuple[Tensors, Tensors] | None:
    """Results of the operator and of ``reference`` on one sample; None where the operator does not take it."""
    assert isinstance(target, torch._ops.OpOverload)
    with real_tensors():
        inputs = sample()
        if len(inputs) != len(target._schema.arguments):
            return None
        try:
            found: Any = target(*(tensor.clone() for tensor in inputs))
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError, NotImplementedError):
            return None
        results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        if not all(isinstance(result, torch.Tensor) for result in results):
            return None
        return results, reference(*inputs)
