"""``torch.optim.Optimizer.step``: the function inside of torch's wrappers, which break every graph around it."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from verifycompile.torch_interface.data_parallel.outer_reduction import on_the_stack


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
