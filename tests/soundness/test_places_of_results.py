"""Results belong together by where the user finds them, not by the order in which a program makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from tests.soundness.plain import verify_functions, verify_modules
from verifycompile import Report, Verdict

ROWS = {"a": (Shard(0),)}


class Named:
    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def report(spec: Callable[..., Any], implementation: Callable[..., Any]) -> Report:
    return verify_functions(spec, lambda _, a: implementation(a), (torch.randn(4, 6),), in_placements=ROWS)


@pytest.mark.parametrize("made", [dict, Named], ids=lambda made: made.__name__)
def test_results_with_names(made: Callable[..., Any]) -> None:
    def spec(a: torch.Tensor) -> Any:
        return made(p=a.sin(), q=a.cos())

    assert report(spec, lambda a: made(q=a.cos(), p=a.sin())).verdict is Verdict.VERIFIED
    assert report(spec, lambda a: made(q=a.sin(), p=a.cos())).verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("expected", "found", "verified"),
    [
        (lambda a: (a.sin(), 3), lambda a: (a.sin(), 3), True),
        (lambda a: (a.sin(), 3), lambda a: (a.sin(), 5), False),
        (lambda a: (a.sin(), 3.0), lambda a: (a.sin(), 1.5), False),
        (lambda a: (a.sin(), "a"), lambda a: (a.sin(), "b"), False),
        (lambda a: (a.sin(), None), lambda a: (None, a.sin()), False),
        (lambda a: (a.sin(), a.shape[0]), lambda a: (a.sin(), a.shape[0]), True),
        (lambda a: (a.sin(), a.shape[0]), lambda a: (a.sin(), a.shape[0] + 1), False),
    ],
)
def test_results_that_are_no_tensors(expected: Callable[..., Any], found: Callable[..., Any], verified: bool) -> None:
    result = report(expected, found)
    assert bool(result) is verified
    assert verified or "what is returned at " in str(result)


def test_a_share_of_a_count_is_listed() -> None:
    result = report(lambda a: (a.sin(), a.shape[0]), lambda a: (a.sin(), a.shape[0]))
    assert any("[1] is each rank's own number: 8 in the spec, 4" in text for text in result.assumptions)


class Keeps(nn.Module):
    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.p = self.q = None

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        values = {"p": a.sin(), "q": a.cos()}
        if self.order == "swapped":
            values = {"q": a.sin(), "p": a.cos()}
        for name in values if self.order != "other order" else reversed(values):
            setattr(self, name, values[name])
        return a.tanh()


@pytest.mark.parametrize(("order", "verdict"), [("other order", Verdict.VERIFIED), ("swapped", Verdict.REFUTED)])
def test_values_that_a_module_keeps(order: str, verdict: Verdict) -> None:
    found = verify_modules(lambda _: (Keeps(""), Keeps(order)), (torch.randn(4, 6),), in_placements=ROWS)
    assert found.verdict is verdict
