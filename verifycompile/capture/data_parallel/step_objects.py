"""The model and the optimizers that a training step uses: given, or found in what the function refers to."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from verifycompile.capture.ranks.as_ranks import uncompiled
from verifycompile.errors import UsageError
from verifycompile.torch_interface.dynamo.closures import globals_named, taken_along

_DEPTH = 4


def objects_of_step(
    step: Callable[..., Any], model: object, optimizer: object, which: str
) -> tuple[nn.Module, tuple[torch.optim.Optimizer, ...]]:
    """The one model of the step and its optimizers. ``which``: "" for the step, "spec_" for its spec.

    Raises ``UsageError`` VC306 where none or several models are found and none is given.
    """
    found: list[Any] = []
    _collect(step, found, set(), _DEPTH)
    optimizers = _given_optimizers(optimizer, which)
    if optimizers is None:
        optimizers = tuple(item for item in found if isinstance(item, torch.optim.Optimizer))
    if model is not None:
        if not isinstance(model, nn.Module):
            raise UsageError("VC306", f"`{which}model` must be the nn.Module that the step trains.")
        return uncompiled(model), optimizers
    modules = [uncompiled(item) for item in found if isinstance(item, nn.Module)]
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    outermost = list({id(module): module for module in modules if id(module) not in inner}.values())
    trained = [module for module in outermost if next(module.parameters(), None) is not None]
    if len(trained) != 1:
        step_name = getattr(step, "__name__", type(step).__name__)
        raise UsageError(
            "VC306",
            f"`{step_name}` refers to {len(trained)} models with parameters: pass the one that it trains as "
            f"`{which}model`, several of them in an nn.ModuleDict.",
        )
    return trained[0], optimizers


def _given_optimizers(given: object, which: str) -> tuple[torch.optim.Optimizer, ...] | None:
    if given is None:
        return None
    items = tuple(cast("Sequence[object]", given)) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(item, torch.optim.Optimizer) for item in items):
        raise UsageError("VC306", f"`{which}optimizer` must be a torch.optim.Optimizer or a list of them.")
    return cast("tuple[torch.optim.Optimizer, ...]", items)


def _collect(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        found.append(value)
        return
    for part in _parts(value):
        _collect(part, found, seen, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    """What a function closes over, is bound to or names, what a container holds, and the attributes of an object."""
    if isinstance(value, functools.partial | types.MethodType):
        yield from taken_along(value)
    elif isinstance(value, types.FunctionType):
        yield from taken_along(value)
        yield from globals_named(value)
        yield getattr(value, "__wrapped__", None)
    elif isinstance(value, Mapping):
        yield from cast("Mapping[object, object]", value).values()
    elif isinstance(value, list | tuple | set):
        yield from cast("list[object]", value)
    elif not isinstance(value, type | types.ModuleType | torch.Tensor):
        yield from getattr(value, "__dict__", {}).values()
