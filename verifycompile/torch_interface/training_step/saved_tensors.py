"""Hooks on the tensors that autograd saves for backward: what they return is what backward computes with.

They are active for a thread, around the call of a frame; Dynamo neither traces them nor guards on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verifycompile.torch_interface.guards.frame_guards import verify_again_unless


def hook_on_saved_tensors() -> str:
    """The name of the function of the user's own that packs or unpacks what is saved now; empty where there is none."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]  # torch's stubs leave it out
    hooks: tuple[Callable[..., Any], ...] = autograd._top_saved_tensors_default_hooks(True) or ()
    names = (getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks if not _is_of_torch(hook))
    return next(names, "")


def _is_of_torch(hook: Callable[..., Any]) -> bool:
    """Torch's own save a tensor elsewhere, or compute it again."""
    return str(getattr(hook, "__module__", "")).startswith(("torch.autograd.", "torch.utils.checkpoint", "torch._"))


def verify_again_where_saving_changes() -> None:
    """Adds a guard to the frame under compilation. Call it inside a Dynamo backend."""
    known = hook_on_saved_tensors()
    sentence = "the same function packs what is saved for backward"
    verify_again_unless([lambda _: hook_on_saved_tensors() == known], sentence)
