"""Hooks on the gradients of graph inputs: those that a tensor has, and those that the traced code registers.

Neither is part of the graph that a Dynamo backend gets. Autograd calls them when backward ends: ``register_hook``
before the gradient is accumulated, ``register_post_accumulate_grad_hook`` once ``tensor.grad`` holds it. Programs also
put hooks on the node that accumulates (``p.expand_as(p).grad_fn.next_functions[0][0]``): autograd calls its pre-hooks
after those of the tensor, and its hooks at the very end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator

BEFORE = "register_hook"
AFTER = "register_post_accumulate_grad_hook"


@dataclasses.dataclass(frozen=True)
class GradientHook:
    """``function`` is None where the traced code makes it and it cannot be had. ``after`` accumulation or before.

    ``of_node``: it is called with what the node that accumulates gets and returns, not with the tensor.
    """

    function: Callable[..., Any] | None
    after: bool
    of_node: bool = False

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)


def registered_hooks(tensor: torch.Tensor) -> tuple[GradientHook, ...]:
    """The hooks that ``tensor`` has, in the order in which autograd calls them."""
    before: Mapping[Any, Any] = tensor._backward_hooks or {}
    after: Mapping[Any, Any] = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    of_node_before, of_node_after = _hooks_of_node(tensor) if tensor.requires_grad else ((), ())
    return (
        *(GradientHook(function, after=False) for function in before.values()),
        *(GradientHook(function, after=False, of_node=True) for function in of_node_before),
        *(GradientHook(function, after=True) for function in after.values()),
        *(GradientHook(function, after=True, of_node=True) for function in of_node_after),
    )


def register_hooks(hooks: Iterable[GradientHook], tensor: torch.Tensor) -> object:
    """Put hooks that another tensor has on ``tensor``, for as long as what is returned lives."""
    node = _node_that_accumulates(tensor) if tensor.requires_grad else None
    for hook in hooks:
        on: Any = node if hook.of_node else tensor
        names = ("register_prehook", "register_hook") if hook.of_node else (BEFORE, AFTER)
        getattr(on, names[hook.after])(hook.function)
    return node


def _node_that_accumulates(leaf: torch.Tensor) -> Any:
    # As `torch.autograd.graph.get_gradient_edge`, without what a subclass of a tensor does at every operator.
    with torch.inference_mode(mode=False), torch.enable_grad(), torch._C._DisableTorchDispatch():
        return cast(Any, leaf.view_as(leaf).grad_fn).next_functions[0][0]


def _hooks_of_node(leaf: torch.Tensor) -> tuple[tuple[Callable[..., Any], ...], tuple[Callable[..., Any], ...]]:
    """The pre-hooks and the hooks of the node that accumulates the gradient. Only who adds one is given the others."""
    node = _node_that_accumulates(leaf)
    before, after = (register(_nothing) for register in (node.register_prehook, node.register_hook))
    before.remove()
    after.remove()
    return tuple(before.hooks_dict_ref().values()), tuple(after.hooks_dict_ref().values())


def _nothing(*_: Any) -> None:
    pass


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
            if hook.of_node:
                assert not hook.after
                (value,) = hook.function((value,)) or (value,)
            elif hook.after:
                held = Parameter(value)
                hook.function(held)
                value = held.grad
            else:
                replaced = hook.function(value)
                value = value if replaced is None else replaced
        return value

    return through_hooks
