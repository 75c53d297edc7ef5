"""Canonical names: the path of a module, the number of its call where it is called again, and a position.

Wrappers leave no trace in a name, so that both programs call a tensor the same: ``layers.0.wq.output.0`` is the first
output of the first call of ``layers.0.wq``, ``layers.0.wq.call1.output.0`` that of the second; ``grad.`` before it is
the gradient of the loss with respect to it. Of the program itself: ``input.tokens``, ``output.0``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from verifycompile.capture.ranks.as_ranks import uncompiled
from verifycompile.errors import UsageError
from verifycompile.torch_interface.dynamo.closures import closed_over, globals_in

_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_DEPTH = 8


def inner_model(model: Any) -> Any:
    """The model behind ``torch.compile`` and ``DistributedDataParallel``."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else uncompiled(model)
        if inner is model:
            return model
        model = inner


def clean(path: str) -> str:
    """The path without the steps that wrappers added."""
    return ".".join(step for step in path.split(".") if step not in _WRAPPERS)


def named_modules(model: Any) -> dict[str, nn.Module]:
    """Canonical path -> module, with what a function closes over; "" is a module that is the model itself."""
    inner = inner_model(model)
    if isinstance(inner, nn.Module):
        return {clean(path): module for path, module in inner.named_modules()}
    found: dict[str, nn.Module] = {}
    for name, value in _held(inner):
        held = inner_model(value)
        if isinstance(held, nn.Module):
            found.update({clean(f"{name}.{path}" if path else name): module for path, module in held.named_modules()})
    return found


def named_tensors(model: Any, renamed: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The spec's name -> parameter or buffer, each once. ``renamed``: the implementation's name -> the spec's."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for path, module in named_modules(model).items():
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in own:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            whole = f"{path}.{name}" if path else name
            found[renamed.get(whole, whole)] = tensor
    return found


def _held(function: Any) -> Iterator[tuple[str, Any]]:
    """Names and values that a function closes over, is bound to, or is called with."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield "self", owner
    for index, value in enumerate(getattr(function, "args", ()) or ()):
        yield f"args{index}", value
    code, closure = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is not None:
        yield from closed_over(code, closure)
        names = cast("dict[str, Any]", getattr(function, "__globals__", {}))
        for name in dict.fromkeys(globals_in(code)):
            if isinstance(names.get(name), nn.Module):
                yield name, names[name]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of the program: its arguments, and the names of the tensors in them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: Mapping[str, torch.Tensor]

    def with_tensors(self, replace: Callable[[str, torch.Tensor], torch.Tensor]) -> Call:
        """The same call with other tensors in the places of these."""
        by_identity = {id(tensor): name for name, tensor in self.names.items()}
        made = {name: replace(name, tensor) for name, tensor in self.names.items()}

        def other(tensor: torch.Tensor) -> torch.Tensor:
            return made[by_identity[id(tensor)]] if id(tensor) in by_identity else tensor

        args = tuple(mapped(value, other) for value in self.args)
        kwargs = {name: mapped(value, other) for name, value in self.kwargs.items()}
        return Call(args, kwargs, made)


def _bound(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by their names; none without a signature. Raises ``TypeError`` for those that it does not take."""
    inner = inner_model(model)
    try:
        signature = inspect.signature(inner.forward if isinstance(inner, nn.Module) else inner)
    except (TypeError, ValueError):
        return {}
    return signature.bind(*args, **kwargs).arguments


def check_call(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises ``UsageError`` VC303 where the model does not take the arguments."""
    try:
        _bound(model, args, kwargs)
    except TypeError as mismatch:
        text = f"the model cannot be called with these `args` and `kwargs`: {mismatch}."
        raise UsageError("VC303", text) from mismatch


def call_of(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The call ``model(*args, **kwargs)``; tensors are named by the parameters of ``forward``."""
    by_position = {**{f"{index}": value for index, value in enumerate(args)}, **kwargs}
    try:
        bound = _bound(model, args, kwargs) or by_position
    except TypeError:
        bound = by_position
    names: dict[str, torch.Tensor] = {}
    for name, value in bound.items():
        names.update(tensors_of(value, name))
    return Call(tuple(args), dict(kwargs), names)


def tensors_of(value: Any, name: str, depth: int = _DEPTH) -> dict[str, torch.Tensor]:
    """Dotted name -> tensor, for the tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    found: dict[str, torch.Tensor] = {}
    for step, item in _items(value) if depth else ():
        found.update(tensors_of(item, f"{name}.{step}", depth - 1))
    return found


def flattened(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return list(tensors_of(value, "").values())


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield str(key), item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield str(index), item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The containers with other tensors in them."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in cast("tuple[Any, ...]", value)))
    if isinstance(value, (list, tuple)):
        items = [mapped(item, change) for item in cast("list[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        changed = {key: mapped(item, change) for key, item in held.items()}
        return changed if type(value) is dict else _refilled(held, changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: mapped(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changes)
    return value


def _refilled(held: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    copy = held.copy()
    for key, item in changed.items():
        copy[key] = item
    return copy
