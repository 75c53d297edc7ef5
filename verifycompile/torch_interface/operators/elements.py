"""Real elements of tensors, while torch captures a graph.

A backend runs under fake tensor modes, functionalization and a tracing context; :func:`real_tensors` leaves
all of them, so that operators called inside compute real CPU values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def real_tensors() -> Generator[None]:
    """Operators called inside compute on real tensors, without gradients or autocast, in float64 by default."""
    default = torch.get_default_dtype()
    with (
        tracing(None),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.no_grad(),
    ):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def constant_value(constant: torch.Tensor) -> torch.Tensor | None:
    """The real values of a tensor held by a captured graph; None for a fake tensor that carries none."""
    if not isinstance(constant, FakeTensor):
        return constant
    return constant.constant
