"""A frame is compiled, and so verified, again once the hooks that backward calls on its inputs are others.

Autograd calls them behind the compiled backward, and Dynamo guards on none: without this, a hook that is registered
after the first call would change gradients that were verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.dynamo.sources import source_name
from verifycompile.torch_interface.guards.frame_guards import verify_again_unless
from verifycompile.torch_interface.guards.function_state import State, is_same_state, state_of
from verifycompile.torch_interface.training_step.gradient_hooks import registered_hooks


def verify_again_where_hooks_change(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], frame: Frame) -> None:
    """Adds a guard to ``frame``, which is under compilation. Call it inside a Dynamo backend."""
    named: dict[str, torch.Tensor | nn.Module] = {
        source_name(node): value
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), example_inputs, strict=False)
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }
    named.pop("", None)
    if not named:
        return
    variable, first = _first_argument(frame)
    if isinstance(first, nn.Module):
        named[f"L[{variable!r}]"] = first
    code = compile(f"({', '.join(named)},)", "<inputs>", "eval")
    known = tuple(map(_hooks_of, named.values()))

    def check(local_values: dict[str, Any]) -> bool:
        try:
            values = eval(code, {"L": local_values, "G": frame.globals})  # noqa: S307 - Dynamo's own expressions
        except (LookupError, AttributeError, NameError):
            return False
        return all(map(is_same_state, map(_hooks_of, values), known))

    verify_again_unless([check], "the hooks on gradients are those with which the frame was verified")


def backward_hooks_around(frame: Frame) -> tuple[str, ...]:
    """The hooks that backward calls on the module whose ``forward`` the frame is: no graph of the frame holds them."""
    _, module = _first_argument(frame)
    if not isinstance(module, nn.Module) or frame.code is not getattr(type(module).forward, "__code__", None):
        return ()
    hooks = (*module._backward_pre_hooks.values(), *module._backward_hooks.values())
    return tuple(getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks)


def _first_argument(frame: Frame) -> tuple[str, object]:
    variable = frame.code.co_varnames[0] if frame.code.co_argcount else ""
    return variable, frame.locals.get(variable)


def _hooks_of(value: torch.Tensor | nn.Module) -> State:
    if isinstance(value, nn.Module):
        return (*value._backward_pre_hooks.values(), *value._backward_hooks.values())
    return hooks_as_they_are(value)


def hooks_as_they_are(tensor: torch.Tensor) -> State:
    """What the hooks of ``tensor`` are made of: blocks that share a graph have a closure each, with the same values."""
    return tuple(part for hook in registered_hooks(tensor) for part in (hook.after, *state_of(hook.function)))
