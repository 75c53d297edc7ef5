"""A choice between multiples of one value is linear in it; the factor of any other one stands before it."""

from __future__ import annotations

import pytest
import torch

from tests.witness.graphs import trace
from verifycompile.refinement.check import check_refinement

INPUTS = {name: torch.randn(4) for name in "xyab"}


def same(left, right):
    return check_refinement(trace(left, INPUTS), trace(right, INPUTS)).mismatch is None


def slope_of_minimum(scale):
    """As torch computes it: halved where the operands are equal."""
    return lambda x, y, a, b: torch.where(x == y, a * scale / 2, a * scale).masked_fill(x > y, 0)


def slope_of_smooth_loss(scale):
    """A choice between values that have nothing but their factor in common."""
    mean = torch.nn.functional.smooth_l1_loss
    return lambda x, y, a, b: torch.func.grad(lambda x: mean(x.tanh(), y))(x) * scale * b


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (slope_of_minimum(1.0), lambda *t: slope_of_minimum(2.0)(*t) / 2, True),
        (slope_of_minimum(1.0), lambda *t: slope_of_minimum(2.0)(*t), False),
        (lambda x, y, a, b: torch.where(x > y, a / 4, b / 2), lambda x, y, a, b: torch.where(x > y, a, b) / 4, False),
        (lambda x, y, a, b: torch.where(x > y, a / 4, b / 2), lambda x, y, a, b: torch.where(x > y, a, 2 * b) / 4, True),
        (slope_of_smooth_loss(1.0), lambda *t: slope_of_smooth_loss(2.0)(*t) / 2, True),
        (slope_of_smooth_loss(1.0), lambda *t: slope_of_smooth_loss(2.0)(*t), False),
        (lambda x, y, a, b: torch.where(x > y, a, 3 * a), lambda x, y, a, b: torch.where(x > y, 3 * a, a), False),
        (lambda x, y, a, b: torch.where(x > y, a, a), lambda x, y, a, b: a, True),
    ],
)
def test_choice(left, right, equal):
    assert same(left, right) is equal
