"""What a function refers to, compared with what it referred to before."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from torch import nn

from verifycompile.torch_interface.guards.function_state import is_same_state, state_of

SETTINGS = types.SimpleNamespace(scale=1, inner={"scale": [1]})


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Tanh()
        self.scale: float = 1

    @property
    def factor(self) -> float:
        return self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.factor


def of_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * SETTINGS.scale


def of_function(x: torch.Tensor) -> torch.Tensor:
    return of_attribute(x) + x


def of_item(x: torch.Tensor) -> torch.Tensor:
    return x * SETTINGS.inner["scale"][0]


def by_default(x: torch.Tensor, *, settings: Any = SETTINGS) -> torch.Tensor:
    return x * settings.scale


MODULE = Module()
CASES: dict[str, tuple[Any, Any]] = {
    "attribute of a global": (of_attribute, lambda new: setattr(SETTINGS, "scale", new)),
    "function that is called": (of_function, lambda new: setattr(SETTINGS, "scale", new)),
    "item of an attribute": (of_item, lambda new: SETTINGS.inner["scale"].__setitem__(0, new)),
    "default argument": (by_default, lambda new: setattr(SETTINGS, "scale", new)),
    "partial application": (functools.partial(of_attribute), lambda new: setattr(SETTINGS, "scale", new)),
    "function inside of a function": (lambda x: (lambda: x * SETTINGS.scale)(), lambda new: setattr(SETTINGS, "scale", new)),
    "method": (MODULE.forward, lambda new: setattr(MODULE, "scale", new)),
    "module": (MODULE, lambda new: setattr(MODULE, "scale", new)),
    "attribute of a module of torch": (lambda x: x * MODULE.inner.scale, lambda new: setattr(MODULE.inner, "scale", new)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_function_refers_to(name: str) -> None:
    function, put = CASES[name]
    put(1)
    before = state_of(function)
    assert is_same_state(state_of(function), before)
    put(1.0)
    assert not is_same_state(state_of(function), before)
    put(1)
    assert is_same_state(state_of(function), before)


def test_functions_of_one_definition() -> None:
    def twice(factor: float) -> Any:
        return lambda gradient: gradient * factor

    assert is_same_state(state_of(twice(2)), state_of(twice(2)))
    assert not is_same_state(state_of(twice(2)), state_of(twice(3)))
    assert not is_same_state(state_of(twice(2)), state_of(lambda gradient: gradient * 2))


def test_a_variable_that_is_assigned_later() -> None:
    def function() -> object:
        return later

    before = state_of(function)
    later = 1
    assert not is_same_state(state_of(function), before)
