"""What compositions of operators are lowered to is what torch computes."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soundness.composed import composed
from verifycompile.rewrites.parts import bounded_sums

LENGTH = 16
aten = torch.ops.aten


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_composed(draw: random.Random) -> None:
    _, difference = composed(draw, LENGTH)
    assert difference is None, difference


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
def test_composed_of_seeds(block: int) -> None:
    lowered = 0
    for seed in range(block * 200, (block + 1) * 200):
        number, difference = composed(random.Random(seed), LENGTH)
        assert difference is None, (seed, difference)
        lowered += number
    assert lowered > 200 * LENGTH / 3


def test_a_wrong_law_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros around a sum that does not depend on the place were forgotten once: a gradient came to every expert."""
    bounded = bounded_sums._bounded
    monkeypatch.setattr(bounded_sums, "padded_sum", lambda pool, view, dim, start, total: (
        None if (opened := bounded(view, dim)) is None else bounded_sums._moved_sum(pool, view, opened, dim, -start, total)
    ))  # fmt: skip
    assert any(composed(random.Random(seed), LENGTH)[1] is not None for seed in range(200))
