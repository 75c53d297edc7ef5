"""Tensor subclasses that a proof does not see."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from verifycompile.torch_interface.tensors import without_pending_collective


def test_pending_collectives() -> None:
    tensor = torch.ones(3)
    assert without_pending_collective(AsyncCollectiveTensor(tensor)) is tensor
    assert without_pending_collective(tensor) is tensor
