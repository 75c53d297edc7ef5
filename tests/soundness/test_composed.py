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
aten = torch.ops.aten


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_composed(draw: random.Random) -> None:
    _, difference = composed(draw, LENGTH)
    assert difference is None, difference


MESHES = [pytest.param((), 200, id="one device"), *(pytest.param(mesh, 20, id=str(mesh)) for mesh in ((2,), (3,), (2, 2), (2, 3)))]
"""With collectives among the calls, and what is read from a rank's coordinates; how many compositions are a block."""
BLOCKS = [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 40))]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("mesh", "number"), MESHES)
def test_composed_of_seeds(mesh: tuple[int, ...], number: int, block: int) -> None:
    lowered = 0
    for seed in range(block * number, (block + 1) * number):
        count, difference = composed(random.Random(seed), LENGTH, mesh)
        assert difference is None, (seed, difference)
        lowered += count
    assert lowered > number * LENGTH / 3


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("mesh", "number"), MESHES)
def test_what_is_changed_is_another_value(mesh: tuple[int, ...], number: int, block: int) -> None:
    counts, seeds = Counts(), number // (3 if mesh else 5)
    for seed in range(block * seeds, (block + 1) * seeds):
        found, hole = compared(random.Random(seed), LENGTH, mesh=mesh)
        assert hole == "", (seed, hole)
        counts += found
    assert counts["wrong"] > seeds / 3
    assert counts["proved"] > 5 * counts["wrong"]


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
