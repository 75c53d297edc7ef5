"""Which functions are active on what autograd saves for backward: the user's own, not those of torch."""

from __future__ import annotations

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from verifycompile.torch_interface.training_step.saved_tensors import hook_on_saved_tensors


def doubled(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def test_functions_of_the_user_are_named() -> None:
    assert hook_on_saved_tensors() == ""
    with saved_tensors_hooks(doubled, lambda value: value):
        assert hook_on_saved_tensors() == "doubled"
    assert hook_on_saved_tensors() == ""


def test_those_of_torch_are_not() -> None:
    found: list[str] = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        found.append(hook_on_saved_tensors())
        return x * x

    x = torch.ones(2, requires_grad=True)
    with save_on_cpu():
        seen(x)
    checkpoint(seen, x, use_reentrant=False)
    assert found == ["", ""]
