"""The laws of the normal form hold on numbers that meet their guards, and fail on some that do not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.lemmas.interpret import variables
from verifycompile.rewrites.laws import LAWS
from verifycompile.rewrites.lemmas.lemma import Lemma, Pattern

SHAPE = (3, 4)
AXES = {"i": 0, "j": 1}
TRIALS = 20

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "add": np.add,
    "mul": np.multiply,
    "scale": np.multiply,
    "times": np.multiply,
    "power": lambda p, a: np.power(a, p),
    "not": lambda a: 1 - a,
    "less": lambda a, b: (a < b).astype(float),
    "less_equal": lambda a, b: (a <= b).astype(float),
}


def evaluate(pattern: Pattern, values: dict[str, Any]) -> Any:
    if isinstance(pattern, str):
        return values[pattern]
    operator, *arguments = pattern
    if operator == "max":
        body = evaluate(arguments[1], values)
        return np.broadcast_to(body.max(axis=AXES[str(arguments[0])], keepdims=True), body.shape)
    return FUNCTIONS[operator](*(evaluate(argument, values) for argument in arguments))


def holds(law: Lemma, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    guards = {(kind, name) for kind, name, _ in law.guards}
    values: dict[str, Any] = {}
    for name in sorted(variables(law.left) | variables(law.right)):
        drawn = torch.randn(SHAPE, generator=generator, dtype=torch.float64).numpy()
        if name in ("p", "q"):
            values[name] = float(np.round(drawn[0, 0], 1))
        elif ("positive", name) in guards:
            values[name] = np.exp(drawn)
        elif ("indicator", name) in guards:
            values[name] = (drawn > 0).astype(float)
        else:
            values[name] = drawn
    with np.errstate(invalid="ignore"):
        left, right = evaluate(law.left, values), evaluate(law.right, values)
    return bool(np.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=False))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.code)
def test_holds_on_numbers(law: Lemma) -> None:
    assert all(holds(law, seed) for seed in range(TRIALS))


@pytest.mark.parametrize(
    ("law", "dropped"),
    [(law, guard) for law in LAWS for guard in law.guards],
    ids=lambda value: value.code if isinstance(value, Lemma) else f"without {value[0]} {value[1]}",
)
def test_is_false_without_any_one_of_its_guards(law: Lemma, dropped: tuple[str, str, str]) -> None:
    bare = dataclasses.replace(law, guards=tuple(guard for guard in law.guards if guard != dropped))
    assert not all(holds(bare, seed) for seed in range(TRIALS))
