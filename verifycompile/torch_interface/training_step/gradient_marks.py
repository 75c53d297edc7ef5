"""Which values of a traced training step are the gradients that a backward pass left in parameters.

In the source they are all one expression: ``loss.backward()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

_CARRIED = "custom"
"""Of a node's ``meta``, what torch carries over where a graph is traced again."""
_OWNER = "gradient of"
_WRITTEN_OUT = "written out"


def mark_gradients(model: nn.Module, names: Callable[[str], str]) -> None:
    """Notes at the nodes that hold gradients of the model's parameters whose they are; nothing outside of a trace.

    ``names``: what a parameter is called where its name in the model is another one.
    """
    for name, parameter in model.named_parameters():
        _note(parameter.grad, _OWNER, names(name))


def mark_written_out(value: torch.Tensor) -> None:
    """Notes at the node that holds a value that a wrapper computes it, by code that is no user's."""
    _note(value, _WRITTEN_OUT, "wrapper")


def is_written_out(node: torch.fx.Node) -> bool:
    """Whether a wrapper's own code computes the value, which no user can change."""
    return _WRITTEN_OUT in node.meta.get(_CARRIED, {})


def _note(value: torch.Tensor | None, key: str, text: str) -> None:
    mode: Any = get_proxy_mode()
    local = value._local_tensor if isinstance(value, DTensor) else value
    held: Any = None if local is None or mode is None else get_proxy_slot(local, mode.tracer, None)
    if held is not None:
        meta = held.proxy.node.meta
        meta[_CARRIED] = {**meta.get(_CARRIED, {}), key: text}


def noted_owner(node: torch.fx.Node) -> str:
    """The parameter whose gradient a node holds when a backward pass ends; "" where it holds none."""
    return str(node.meta.get(_CARRIED, {}).get(_OWNER, ""))


def owner_of_gradient(node: torch.fx.Node, moves: Callable[[torch.fx.Node], bool]) -> str:
    """The parameter of which a value is the gradient; "" where it is none.

    ``moves``: whether a call gives its operand in another form.
    """
    pending: list[torch.fx.Node] = [node]
    seen = {node}
    while pending:
        current = pending.pop()
        if noted_owner(current):
            return noted_owner(current)
        later: Iterable[torch.fx.Node] = (user for user in current.users if user not in seen and moves(user))
        for user in later:
            seen.add(user)
            pending.append(user)
    return ""
