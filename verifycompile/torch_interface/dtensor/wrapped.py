"""Tensors without storage, whose operators a subclass computes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

Wrapper = TypeVar("Wrapper", bound=torch.Tensor)


def without_storage(kind: type[Wrapper], shape: Sequence[int], dtype: torch.dtype) -> Wrapper:
    """An instance of a subclass that has a ``__torch_dispatch__`` of its own."""
    made: Any = torch.Tensor._make_wrapper_subclass(kind, tuple(shape), dtype=dtype)
    return made
