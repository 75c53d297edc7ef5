"""Random views and what they hold, for property tests."""

from __future__ import annotations

import random

import torch

from verifycompile.ir.term import TermPool, View

Leaves = dict[str, torch.Tensor]


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def leaf(pool: TermPool, leaves: Leaves, *shape: int) -> View:
    """A new leaf with a random value."""
    name = f"x{len(leaves)}"
    leaves[name] = tensor(*shape, seed=len(leaves))
    return pool.leaf(name, shape)


def factorizations(number: int) -> list[tuple[int, ...]]:
    """All ways to write a number as an ordered product of factors, ones included."""
    result: list[tuple[int, ...]] = [(number,), (1, number), (number, 1)]
    for first in range(2, number):
        if number % first == 0:
            result.extend((first, *rest) for rest in factorizations(number // first))
    return result


def random_shape(draw: random.Random, elements: int) -> tuple[int, ...]:
    return draw.choice(factorizations(elements))
