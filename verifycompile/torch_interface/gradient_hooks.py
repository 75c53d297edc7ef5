"""Hooks on the gradients of graph inputs: those that a tensor has, and those that the traced code registers.

Neither is part of the graph that a Dynamo backend gets. Autograd calls them when backward ends: ``register_hook``
before the gradient is accumulated, ``register_post_accumulate_grad_hook`` once ``tensor.grad`` holds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator

BEFORE = "register_hook"
AFTER = "register_post_accumulate_grad_hook"


@dataclasses.dataclass(frozen=True)
class GradientHook:
    """``function`` is None where the traced code makes it and it cannot be had. ``after`` accumulation or before."""

    function: Callable[..., Any] | None
    after: bool

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)


def registered_hooks(tensor: torch.Tensor) -> tuple[GradientHook, ...]:
    """The hooks that ``tensor`` has, in the order in which autograd calls them."""
    before: Mapping[Any, Any] = tensor._backward_hooks or {}
    after: Mapping[Any, Any] = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    return (
        *(GradientHook(function, after=False) for function in before.values()),
        *(GradientHook(function, after=True) for function in after.values()),
    )


def hooks_of_traced_code() -> dict[str, tuple[GradientHook, ...]]:
    """Placeholder name -> hooks that the frame registers on it. Only inside a Dynamo backend."""
    translator: Any = InstructionTranslator.current_tx()
    found: dict[str, tuple[GradientHook, ...]] = {}
    for tensor, hook, _, kind in translator.output.root_tx.output.side_effects.tensor_hooks.values():
        name = tensor.as_proxy().node.name
        found[name] = (*found.get(name, ()), GradientHook(_function_of(hook), kind == AFTER))
    return found


def _function_of(hook: Any) -> Callable[..., Any] | None:
    """The Python function behind Dynamo's variable: its own object, or one made of code and constants."""
    hook = hook.realize()
    for attribute in ("fn", "value"):
        held = getattr(hook, attribute, None)
        if callable(held):
            return held
    try:
        return hook.get_function()
    except (NotImplementedError, AttributeError):
        return None


class Parameter:
    """What a hook sees of its tensor: the accumulated gradient."""

    def __init__(self, grad: torch.Tensor) -> None:
        self.grad = grad


def hooked(hooks: tuple[GradientHook, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of a gradient that ``hooks`` are, one after the other."""

    def through_hooks(gradient: torch.Tensor) -> torch.Tensor:
        # A hook may write into the gradient; the input of a traced function is to stay as it is.
        value = gradient.clone()
        for hook in hooks:
            assert hook.function is not None
            if hook.after:
                held = Parameter(value)
                hook.function(held)
                value = held.grad
            else:
                replaced = hook.function(value)
                value = value if replaced is None else replaced
        return value

    return through_hooks
