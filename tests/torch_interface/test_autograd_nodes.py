"""Which nodes of autograd's graph a call makes, and calls of custom functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from verifycompile.torch_interface.training_step.autograd_nodes import (
    custom_functions_around,
    edges_out_of,
    next_number,
    nodes_since,
    value_of,
)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch's own signature is open
        return gradient * 2


doubled = Doubled.apply


def test_the_nodes_of_a_call_and_where_their_gradients_go() -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    parts = (weight * 1).chunk(3)
    number = next_number()
    result = (parts[1] * 2 + doubled(parts[2])).exp()
    nodes = nodes_since([result], number)
    assert [type(node).__name__ for node in nodes] == ["ExpBackward0", "AddBackward0", "MulBackward0", "DoubledBackward"]
    assert [edge.value for edge in edges_out_of(nodes)] == [value_of(parts[1]), value_of(parts[2])]
    assert nodes_since([weight, parts[0].detach()], 0) == []
    (leaf,) = edges_out_of(nodes_since([weight * 1], 0))
    assert type(leaf.value[0]).__name__ == "AccumulateGrad"


def test_calls_of_custom_functions_are_seen_in_their_own_thread_alone() -> None:
    seen: list[str] = []

    def around(name: str, call: Callable[[], Any]) -> Any:
        seen.append(name)
        return call()

    with custom_functions_around(around):
        assert doubled(torch.ones(())).item() == 2
        other = threading.Thread(target=doubled, args=(torch.ones(()),))
        other.start()
        other.join()
        with custom_functions_around(lambda name, call: call() + 1):
            assert Doubled.apply(torch.ones(())).item() == 3
        assert Doubled.apply(torch.ones(())).item() == 2
    assert seen == ["Doubled", "Doubled"]
    doubled(torch.ones(()))
    assert seen == ["Doubled", "Doubled"]
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
