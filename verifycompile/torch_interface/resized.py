"""Recorded values of a graph's nodes with other sizes: tensors without memory, symbolic numbers with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes


def resized_tensor(recorded: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """A tensor without memory of ``shape`` and the dtype of ``recorded``, its dimensions in memory in the same order.

    A dimension of which ``recorded`` repeats one element repeats one element.
    """
    sizes = tuple(shape)
    if not all(isinstance(size, int) for size in (*sizes, *recorded.stride())):
        mode = recorded.fake_mode if isinstance(recorded, FakeTensor) else None
        if mode is None:
            return recorded
        with mode:
            return torch.empty(sizes, dtype=recorded.dtype, device=recorded.device)
    order = sorted(range(len(sizes)), key=lambda dim: (recorded.stride(dim), -dim))
    strides = [0] * len(sizes)
    step = 1
    for dim in order:
        if recorded.stride(dim) == 0 and recorded.shape[dim] > 1:
            continue
        strides[dim] = step
        step *= max(sizes[dim], 1)
    with unset_fake_temporarily():
        return torch.empty_strided(sizes, strides, dtype=recorded.dtype, device="meta")


def resized_number(recorded: Any, size: Callable[[int], int]) -> Any:
    """A symbolic number with ``size`` of each whole number in its expression; any other value as it is."""
    if not isinstance(recorded, torch.SymInt):
        return recorded
    expression = recorded.node.expr
    changes: Mapping[Any, Any] = {
        number: sympy.Integer(size(int(number))) for number in expression.atoms(sympy.Integer) if int(number) > 1
    }
    replaced = expression.xreplace(changes)
    if replaced == expression:
        return recorded
    environment = recorded.node.shape_env
    known = replaced.xreplace(environment.backed_var_to_val)
    return environment.create_symintnode(replaced, hint=int(known) if known.is_Integer else None)


def shape_without_memory(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator gives for tensors without memory; what it creates has none either."""
    device = {"device": torch.device("meta")} if "device" in kwargs else {}
    with tracing(None), _disable_current_modes(), torch.no_grad():
        return target(*args, **{**kwargs, **device})
