"""Traced code that asks for the number of a device: jobs give each process of a machine a device of its own.

Dynamo folds it into the graph. Outside of traces nothing tells who reads it of a tensor's device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable

from verifycompile.torch_interface.ranks.observation import NUMBER_OF_DEVICE, ReadKind, note_traced


def _is_numbered(device: object) -> bool:
    return isinstance(device, torch.device) and ":" in str(device)


@functools.cache
def note_numbers_of_devices() -> None:
    """From now on, ``tensor.device.index`` and ``tensor.get_device()`` in traced code are questions about the rank."""
    attribute, method = ConstantVariable.const_getattr, TensorVariable.method_get_device

    def const_getattr(self: Any, tx: Any, name: str) -> Any:
        if name == "index" and _is_numbered(self.value):
            note_traced(ReadKind.RANK, NUMBER_OF_DEVICE, by_torch_too=False)
        return attribute(self, tx, name)

    def method_get_device(self: Any, tx: Any) -> Any:
        if _is_numbered(self.device):
            note_traced(ReadKind.RANK, NUMBER_OF_DEVICE, by_torch_too=False)
        return method(self, tx)

    ConstantVariable.const_getattr = const_getattr
    TensorVariable.method_get_device = method_get_device
