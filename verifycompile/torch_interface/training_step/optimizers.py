"""Steps of optimizers: the function inside of torch's wrappers, which break each graph; which writes are theirs."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from verifycompile.torch_interface.communication.received import writes_by_collectives
from verifycompile.torch_interface.data_parallel.outer_reduction import on_the_stack
from verifycompile.torch_interface.operators.contents import own_part, writes_to

_BY_STEPS: MutableMapping[torch.Tensor, int] = WeakTensorKeyDictionary()
"""How often steps of optimizers have written to a parameter, by what this process holds of it."""
_BEFORE: MutableMapping[torch.optim.Optimizer, list[tuple[torch.Tensor, int]]] = weakref.WeakKeyDictionary()
"""The parameters of the optimizers whose steps run, and the writes to them by others."""


def step_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """For the bound ``step`` of an optimizer the method that Dynamo compiles, else None.

    torch wraps it in a profiler's scope, in hooks, and between two graph breaks that turn gradients off.
    """
    owner = getattr(function, "__self__", None)
    wrapped = getattr(function, "__func__", None)
    if not isinstance(owner, torch.optim.Optimizer) or not isinstance(wrapped, types.FunctionType):
        return None
    if wrapped.__name__ != "step" or owner.defaults.get("differentiable"):
        return None
    return types.MethodType(inspect.unwrap(wrapped), owner)


def steps_parts_of_parameters() -> bool:
    """Whether a ``ZeroRedundancyOptimizer`` runs, which updates a part of the parameters on each rank and sends it."""
    loaded = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return loaded is not None and any(isinstance(held, loaded.ZeroRedundancyOptimizer) for held in on_the_stack())


def writes_outside_of_steps(tensor: torch.Tensor) -> int:
    """The writes to a tensor without those of uncompiled optimizers, since this was asked for the first time."""
    _follow_steps()
    return _writes(tensor) - _BY_STEPS.get(own_part(tensor), 0)


def _writes(tensor: torch.Tensor) -> int:
    return writes_to(tensor) + writes_by_collectives(tensor)


@functools.cache
def _follow_steps() -> None:
    register_optimizer_step_pre_hook(_begins)
    register_optimizer_step_post_hook(_has_run)


def _begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return  # what the compiled step writes to is compared as of any other graph
    trained = (value for group in optimizer.param_groups for value in group["params"])
    _BEFORE[optimizer] = [(value, writes_outside_of_steps(value)) for value in trained]


def _has_run(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    # One step may run within another one, as in a ``ZeroRedundancyOptimizer``: nothing is counted twice.
    for value, by_others in _BEFORE.pop(optimizer, ()):
        _BY_STEPS[own_part(value)] = _writes(value) - by_others
