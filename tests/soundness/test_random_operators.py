"""Fuzzing operator by operator: what verifies is right on every rank, whatever was changed."""

from __future__ import annotations

import collections

import pytest

from tests.soundness.random_operators import outcome, random_trial

BLOCK = 250


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(2, 60))])
def test_random_operators(block: int) -> None:
    counts: collections.Counter[tuple[bool, str] | None] = collections.Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        trial = random_trial(seed)
        found = None if trial is None else outcome(trial)
        assert found != (True, "different"), f"seed {seed} verifies and is wrong: {trial}"
        counts[found] += 1
    # Neither side is empty.
    assert counts[(True, "equal")] > 10
    assert counts[(False, "")] > 10
