"""Tensor subclasses that a proof does not see."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from verifycompile.torch_interface.dtensor.tensors import fake_tensors, without_pending_collective
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame


def test_pending_collectives() -> None:
    tensor = torch.ones(3)
    assert without_pending_collective(AsyncCollectiveTensor(tensor)) is tensor
    assert without_pending_collective(tensor) is tensor


def test_tensors_without_memory_are_traced_with_others() -> None:
    model = nn.Linear(1 << 20, 1 << 20, bias=False, device="meta")
    with fake_tensors():
        model.weight = nn.Parameter(torch.empty(model.weight.shape))
    assert isinstance(model.weight, FakeTensor)
    frame = frame_of_call(model.forward, (torch.zeros(2, 1 << 20),), {})
    traced = trace_frame(frame, lambda traced: traced)
    assert [tuple(value.shape) for value in traced.example_inputs] == [(1 << 20, 1 << 20), (2, 1 << 20)]
