"""Numbers compared with places, written as elements of the places' counter, against torch for every rank."""

from __future__ import annotations

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.building.numbers import Call
from verifycompile.rewrites.operators.counted import as_element, equal_numbers, number_of_places
from verifycompile.rewrites.rows.rows import dense

aten = torch.ops.aten
OUTER, INNER = 2, 3
P, Q = sympy.symbols("p q", integer=True, nonnegative=True)


def world() -> tuple[Builder, torch.Tensor]:
    pool = TermPool()
    scores = torch.randn(OUTER, INNER, 7, 12, generator=torch.Generator().manual_seed(0))
    return Builder(pool, (OUTER, INNER), {P: 0, Q: 1}), scores


@pytest.mark.parametrize("number", [5, 0, 11, 6 * P, 2 * Q, 6 * P + 2 * Q + 1, 6 * P + 3, 2 * Q + 6, 4 * Q + 3])
def test_a_number_is_the_element_of_the_counter(number: sympy.Expr | int) -> None:
    b, scores = world()
    chosen = dense(b, aten.topk.default, b.pool.leaf("scores", tuple(scores.shape)), 2)[1]
    assert number_of_places(chosen) == 12
    b.call = Call()
    left, right = b.aligned(chosen, number)
    assert as_element(b, right, 12) is not None
    found = Evaluator({"scores": scores}).view(equal_numbers(b, left, right))
    for p in range(OUTER):
        for q in range(INNER):
            value = int(sympy.sympify(number).subs({P: p, Q: q}))
            assert torch.equal(found[p, q] != 0, scores[p, q].topk(2)[1] == value)


@pytest.mark.parametrize("number", [12, -1, 6 * P + 7, 5 * P, 2 * Q + 6 * P - 1, 3 * Q + 6 * P, P / 2, 6 * Q + 1])
def test_a_number_that_may_be_no_element_is_none(number: sympy.Expr | int) -> None:
    b, _ = world()
    assert as_element(b, b.number(number), 12) is None


def test_a_slice_that_begins_inside_of_its_rank_s_block() -> None:
    b, _ = world()
    table = torch.arange(12.0).expand(OUTER, INNER, 12)
    view = b.pool.leaf("table", (OUTER, INNER, 12))
    found = Evaluator({"table": table}).view(b.narrow(view, 0, 6 * P + 2 * Q + 1, 1))
    assert torch.equal(found[..., 0], torch.tensor([[6.0 * p + 2 * q + 1 for q in range(INNER)] for p in range(OUTER)]))


@pytest.mark.parametrize("limits", [(None, 11), (0, None), (0, 20), (12, None), (None, -1), (3, 9), (None, 0)])
def test_limits_of_a_counter(limits: tuple[int | None, int | None]) -> None:
    b, _ = world()
    found = dense(b, aten.clamp.default, b.iota(12), *limits)
    assert torch.equal(Evaluator({}).view(found)[0, 0].long(), torch.arange(12).clamp(*limits))
    assert (found == b.iota(12)) == (limits in [(None, 11), (0, None), (0, 20)])
