"""What modules keep in plain attributes (caches, counters, copies of tensors), to be put back between runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

import torch
from torch import nn

_OWN = frozenset(vars(nn.Module()))
"""Of every module: tables of parameters, children and hooks."""
_DEPTH = 3
Back = Callable[[], Any]
"""Gives a value as it was: the same object with the same content."""


class Attributes:
    """Those of ``modules`` as they are now. ``kept``: tensors that somebody else puts back."""

    def __init__(self, modules: Iterable[nn.Module], kept: Collection[int]) -> None:
        self._held = [
            (vars(module), {name: _remembered(value, kept) for name, value in _plain(module)}) for module in modules
        ]

    def put_back(self) -> None:
        """Let the modules have what they had."""
        with torch.no_grad():
            for attributes, remembered in self._held:
                for name in [name for name in attributes if name not in _OWN and name not in remembered]:
                    del attributes[name]
                for name, back in remembered.items():
                    attributes[name] = back()


def _plain(module: nn.Module) -> Iterable[tuple[str, Any]]:
    return [(name, value) for name, value in vars(module).items() if name not in _OWN]


def _remembered(value: Any, kept: Collection[int], depth: int = _DEPTH) -> Back:
    if isinstance(value, torch.Tensor):
        if id(value) in kept or value.requires_grad or type(value) is not torch.Tensor:
            return lambda: value
        content = value.clone()
        return lambda: value.copy_(content) if value.shape == content.shape else content.clone()
    if type(value) not in (list, dict) or not depth:
        return lambda: value
    if isinstance(value, list):
        items = cast("list[Any]", value)
        each = [_remembered(item, kept, depth - 1) for item in items]
        return lambda: _refilled(items, [back() for back in each])
    table = cast("dict[Any, Any]", value)
    entries = {key: _remembered(item, kept, depth - 1) for key, item in table.items()}
    return lambda: _refilled(table, {key: back() for key, back in entries.items()})


def _refilled(held: Any, content: Any) -> Any:
    held.clear()
    (held.extend if isinstance(held, list) else held.update)(content)
    return held
