"""What a function would read if it were called now, in a form that is compared with what it would have read before."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from verifycompile.torch_interface.dynamo.closures import globals_named, names_in, taken_along

State = tuple[object, ...]

_BY_VALUE = (int, float, complex, str, bytes, type(None), types.CodeType)
_MADE_ANEW = (functools.partial, types.MethodType, types.FunctionType, tuple, list, dict)
"""Kinds of values of which another one of the same content is the same."""


def state_of(function: object) -> State:
    """Code, numbers, and the identity of all else that ``function`` and the functions that it calls refer to."""
    names = {"__call__", "forward"}
    while True:
        known = len(names)
        found = tuple(_read(function, names, set()))
        if len(names) == known:
            return found


def is_same_state(now: State, before: State) -> bool:
    """Functions made by one definition are the same where they close over the same values."""
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(now: object, before: object) -> bool:
    return now is before or (type(now) is type(before) and isinstance(now, _BY_VALUE) and now == before)


def _read(value: object, names: set[str], seen: set[int]) -> Iterator[object]:
    """``names``: of the attributes that the code reads, to which those that are met are added."""
    if isinstance(value, _BY_VALUE) or _is_of_torch(value):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        yield type(value) if isinstance(value, _MADE_ANEW) else value
        for part in _parts(value, names):
            yield from _read(part, names, seen)


def _parts(value: object, names: set[str]) -> Iterator[object]:
    if isinstance(value, types.FunctionType):
        names.update(names_in(value.__code__))
        yield value.__code__
        yield from globals_named(value)
        yield from taken_along(value)
    elif isinstance(value, types.MethodType | functools.partial):
        yield from taken_along(value)
    elif isinstance(value, tuple | list):
        items = cast("tuple[object, ...]", value)
        yield from (len(items), *items)
    elif isinstance(value, dict):
        held = cast("dict[object, object]", value)
        yield from (len(held), *held.keys(), *held.values())
    elif isinstance(value, property):
        yield value.fget
    else:
        yield from (_attribute(value, name) for name in sorted(names))


def _attribute(value: Any, name: str) -> object:
    held = inspect.getattr_static(value, name, None)
    return value._modules.get(name) if held is None and isinstance(value, nn.Module) else held


def _is_of_torch(value: object) -> bool:
    """Torch's own functions, classes and modules are taken to be what they were."""
    if not isinstance(value, types.FunctionType | types.ModuleType | type):
        return False
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return name == "torch" or name.startswith("torch.")
