"""DTensor's own methods where a program runs as the only process of a job: each gives the tensor, which is whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch.distributed.tensor import DTensor

_METHODS = ("to_local", "full_tensor", "redistribute")
_CASTS = frozenset({"forward_dtype", "backward_dtype"})
"""Arguments of ``redistribute`` that make it more than a move of data."""


@contextlib.contextmanager
def methods_of_whole_tensors() -> Generator[None]:
    """While entered, Dynamo traces what code does with DTensors for plain tensors, as on a mesh of one rank."""
    with contextlib.ExitStack() as stack:
        for name in _METHODS:
            stack.enter_context(mock.patch.object(TensorVariable, f"method_{name}", _itself, create=True))
            stack.enter_context(mock.patch.object(torch.Tensor, name, getattr(DTensor, name), create=True))
        stack.enter_context(mock.patch.object(DTensor, "from_local", staticmethod(_made)))
        yield


def _itself(variable: Any, _translator: Any, *_: Any, **named: Any) -> Any:
    """None where torch's own method is meant, or where a cast is asked for."""
    example = variable.proxy.node.meta.get("example_value")
    return None if isinstance(example, DTensor) or _CASTS & named.keys() else variable


def _made(local_tensor: torch.Tensor, _mesh: Any = None, placements: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    for placement in placements or ():
        if placement.is_partial():
            raise TypeError("a sum of which each rank holds a part is no tensor of a single device")
    return local_tensor
