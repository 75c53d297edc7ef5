"""What compositions of operators are lowered to is what torch computes."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.call import RefusedError, Sample, evaluate_call
from tests.soundness.composed import composed
from tests.soundness.composed_pairs import Counts, compared
from verifycompile.rewrites.parts import bounded_sums

LENGTH = 16
MESHES = ((2,), (3,), (2, 2), (2, 3))
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


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_composed_on_ranks(mesh: tuple[int, ...], block: int) -> None:
    """Collectives, and what is read from a rank's coordinates, among the calls."""
    lowered = 0
    for seed in range(block * 20, (block + 1) * 20):
        number, difference = composed(random.Random(seed), LENGTH, mesh)
        assert difference is None, (seed, difference)
        lowered += number
    assert lowered > 20 * LENGTH / 3


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_is_changed_on_ranks_is_another_value(mesh: tuple[int, ...], block: int) -> None:
    counts = Counts()
    for seed in range(block * 6, (block + 1) * 6):
        found, hole = compared(random.Random(seed), LENGTH, mesh=mesh)
        assert hole == "", (seed, hole)
        counts += found
    assert counts["wrong"] > 2
    assert counts["proved"] > 5 * counts["wrong"]


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))])
def test_what_is_changed_is_another_value(block: int) -> None:
    counts = Counts()
    for seed in range(block * 40, (block + 1) * 40):
        found, hole = compared(random.Random(seed), LENGTH)
        assert hole == "", (seed, hole)
        counts += found
    assert counts["wrong"] > 20
    assert counts["proved"] > 10 * counts["wrong"]


def test_a_gradient_of_another_size_than_its_slice() -> None:
    """Torch repeats it over the slice, or drops it."""
    row = torch.randn(1, 2)
    for end in (0, 3):
        with pytest.raises(RefusedError) as refused:
            evaluate_call(Sample(aten.slice_backward.default, (row, [4, 2], 0, 0, end, 1)))
        assert refused.value.message.endswith("the gradient of a slice has another size than the slice: torch repeats it")


def test_a_wrong_law_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros around a sum that does not depend on the place were forgotten once: a gradient came to every expert."""
    bounded = bounded_sums._bounded
    monkeypatch.setattr(bounded_sums, "padded_sum", lambda pool, view, dim, start, total: (
        None if (opened := bounded(view, dim)) is None else bounded_sums._moved_sum(pool, view, opened, dim, -start, total)
    ))  # fmt: skip
    assert any(composed(random.Random(seed), LENGTH)[1] is not None for seed in range(200))
