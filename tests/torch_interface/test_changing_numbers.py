"""Dynamo reads a number from an input where it is told that it changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from verifycompile.torch_interface.dynamo.changing_numbers import last_name, tracing_numbers_as_inputs
from verifycompile.torch_interface.dynamo.frames import frame_of_call, trace_frame


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor, self.other = 0.5, 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.other


@pytest.mark.parametrize(("names", "inputs"), [((), 1), (("factor",), 2), (("factor", "other"), 3), (("x",), 1)])
def test_inputs(names: tuple[str, ...], inputs: int) -> None:
    with tracing_numbers_as_inputs(names):
        frame = frame_of_call(Holder(), (torch.randn(3),), {})
        assert trace_frame(frame, lambda traced: len(traced.example_inputs)) == inputs


@pytest.mark.parametrize("source", ["L['self'].scale", "L['scale']", "layers.0.scale", "L['self'].numbers['scale']"])
def test_last_name(source: str) -> None:
    assert last_name(source) == "scale"
