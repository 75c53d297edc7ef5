"""Tensor subclasses of torch.distributed that are transparent to a proof."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor


def without_pending_collective(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor behind the pending result of a collective; other tensors as they are."""
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor
