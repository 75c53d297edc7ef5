"""Products, powers and logarithms of sums of exponentials: laws on numbers, and where they must not be applied."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.exponential import EXPONENTIAL, MAXIMUM, is_positive, may_be_lowest
from verifycompile.ir.relabel import narrow
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import product_lemma
from verifycompile.rewrites.finders.shares import rests_of_shares
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.operators.reduction import extreme
from verifycompile.rewrites.operators.sigmoids import log_sigmoid_forward, sigmoid, sigmoid_backward
from verifycompile.rewrites.squares import is_sum_of_squares

ROWS, KEYS, WIDTH = 3, 4, 2


def leaves() -> tuple[Builder, dict[str, View], Evaluator]:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    shapes = {"s": (ROWS, KEYS), "v": (KEYS, WIDTH), "g": (ROWS, WIDTH), "c": (ROWS,), "x": (ROWS,), "y": (ROWS,)}
    views = {name: pool.leaf(name, shape) for name, shape in shapes.items()}
    random = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}
    return Builder(pool), views, Evaluator(values)


def check(evaluator: Evaluator, view: View, expected: torch.Tensor) -> None:
    torch.testing.assert_close(evaluator.view(view), expected)


def test_weights_times_sum_is_one_sum() -> None:
    b, v, evaluator = leaves()
    weights, total = b.exp(v["s"]), b.sum(b.exp(v["s"]), [1], keepdim=True)
    inverse = b.power(total, -1)
    other = b.unsqueeze(v["c"], 1)
    together = b.mul(weights, b.sub(b.mul(inverse, v["s"]), b.mul(inverse, other)))
    apart = b.sub(b.mul(weights, inverse, v["s"]), b.mul(weights, inverse, other))
    assert together == apart
    s, c = evaluator.leaves["s"], evaluator.leaves["c"]
    check(evaluator, together, s.softmax(1) * (s - c[:, None]))
    assert b.mul(v["x"], b.add(v["c"], v["y"])) != b.add(b.mul(v["x"], v["c"]), b.mul(v["x"], v["y"]))


def test_sum_inside_of_weights() -> None:
    b, v, evaluator = leaves()
    weights = b.exp(v["s"])
    inside = b.contraction("k l, k l -> k", weights, b.contraction("l j, k j -> k l", v["v"], v["g"]))
    outside = b.contraction("k j, k j -> k", b.contraction("k l, l j -> k j", weights, v["v"]), v["g"])
    assert inside == outside
    expected = torch.einsum("kl,lj,kj->k", evaluator.leaves["s"].exp(), evaluator.leaves["v"], evaluator.leaves["g"])
    check(evaluator, outside, expected)


def test_power_and_logarithm_of_sum_with_common_factor() -> None:
    b, v, evaluator = leaves()
    shift = b.exp(b.scale(v["c"], -1))
    total = b.add(b.mul(shift, b.exp(v["x"])), b.mul(shift, b.exp(v["y"])))
    plain = b.add(b.exp(v["x"]), b.exp(v["y"]))
    assert b.power(total, -1) == b.mul(b.exp(v["c"]), b.power(plain, -1))
    assert b.log(total) == b.sub(b.log(plain), v["c"])
    x, y, c = (evaluator.leaves[name] for name in "xyc")
    check(evaluator, b.power(total, -1), 1 / (torch.exp(x - c) + torch.exp(y - c)))
    check(evaluator, b.log(total), torch.log(torch.exp(x - c) + torch.exp(y - c)))


def test_denominators_are_common_factors() -> None:
    b, v, evaluator = leaves()
    one_more = b.add(1, b.exp(b.sub(v["x"], v["y"])))
    assert b.log(one_more) == b.sub(b.log(b.add(b.exp(v["x"]), b.exp(v["y"]))), v["y"])
    check(evaluator, b.log(one_more), torch.log1p(torch.exp(evaluator.leaves["x"] - evaluator.leaves["y"])))
    difference = b.sub(b.exp(v["x"]), b.exp(v["y"]))
    check(evaluator, b.power(difference, -1), 1 / (evaluator.leaves["x"].exp() - evaluator.leaves["y"].exp()))


@pytest.mark.parametrize(("offset", "positive"), [(0, True), (2, True), (-1, False)])
def test_row_of_a_mask_that_may_be_empty(offset: int, positive: bool) -> None:
    """Row 0 of a mask strictly below the diagonal holds nothing."""
    b, v, evaluator = leaves()
    mask = b.less_equal(b.iota(KEYS), b.unsqueeze(b.iota(ROWS, offset), 1))
    masked = choose(b, mask, v["s"], -math.inf)
    total = b.sum(b.exp(masked), [1])
    assert is_positive(total) is positive
    assert bool((evaluator.view(total) > 0).all()) is positive
    largest = extreme(b, masked, [1], False, "max")
    assert may_be_lowest(largest) is not positive
    assert bool(evaluator.view(largest).isfinite().all()) is positive
    added = b.add(v["s"], choose(b, mask, 0, -math.inf))
    assert may_be_lowest(extreme(b, added, [1], False, "max")) is not positive


def test_maximum_that_may_be_lowest_is_not_taken_apart() -> None:
    """Where it is minus infinity, the exponential of a difference is no number, and nothing that cancels."""
    b, v, _ = leaves()
    mask = b.less_equal(b.iota(KEYS), b.unsqueeze(b.iota(ROWS, -1), 1))
    masked = choose(b, mask, v["s"], -math.inf)
    largest = extreme(b, masked, [1], False, "max")
    new = b.pointwise(MAXIMUM, largest, v["x"])
    kept = b.exp(b.sub(largest, new))
    assert kept.term.operation is EXPONENTIAL
    assert b.mul(b.exp(b.sub(new, largest)), kept) != b.full(1, (ROWS,))
    assert not may_be_lowest(new)
    rescaled = b.exp(b.sub(v["c"], new))
    assert b.mul(rescaled, b.exp(b.sub(new, v["c"]))) == b.full(1, (ROWS,))


def test_parts_of_a_softmax_are_merged_by_a_sigmoid() -> None:
    """``out - sigmoid(here - before) (out - part)`` is the output of both; not if the logarithms change places."""
    b, v, evaluator = leaves()
    b.pool.combination_rules.append(rests_of_shares)
    first, second = (b.exp(narrow(v["s"], 1, start, 2)) for start in (0, 2))
    totals = [b.sum(part, [1]) for part in (first, second)]
    before, here = (b.log(total) for total in totals)
    outputs = [b.mul(value, b.power(total, -1)) for value, total in zip((v["x"], v["y"]), totals, strict=True)]
    weight = sigmoid(b, b.sub(here, before))
    merged = b.sub(outputs[0], b.mul(weight, b.sub(*outputs)))
    inverse = b.power(b.add(*totals), -1)
    assert merged == b.add(b.mul(v["x"], inverse), b.mul(v["y"], inverse))
    s, x, y = (evaluator.leaves[name] for name in "sxy")
    sums = s[:, :2].exp().sum(1), s[:, 2:].exp().sum(1)
    check(evaluator, merged, (x + y) / (sums[0] + sums[1]))
    check(evaluator, sigmoid_backward(b, v["x"], weight), x * sums[0] * sums[1] / (sums[0] + sums[1]) ** 2)
    check(evaluator, b.sub(before, log_sigmoid_forward(b, b.sub(before, here))[0]), (sums[0] + sums[1]).log())
    turned = sigmoid(b, b.sub(before, here))
    assert b.sub(outputs[0], b.mul(turned, b.sub(*outputs))) != merged


def test_gradient_of_a_weight_whatever_was_lowered_before() -> None:
    b, v, evaluator = leaves()
    b.pool.combination_rules.append(rests_of_shares)
    p, q = b.sum(b.exp(v["s"]), [1]), b.sum(b.exp(b.mul(v["s"], b.unsqueeze(v["y"], 1))), [1])
    weight = b.mul(p, b.power(b.add(p, q), -1))
    before = sigmoid_backward(b, v["x"], weight)
    assert sigmoid(b, b.sub(b.log(p), b.log(q))) == weight
    assert sigmoid_backward(b, v["x"], weight) == before
    assert before == b.mul(v["x"], p, q, b.power(b.add(p, q), -2))
    s, y = evaluator.leaves["s"], evaluator.leaves["y"]
    first, second = s.exp().sum(1), (s * y[:, None]).exp().sum(1)
    check(evaluator, before, evaluator.leaves["x"] * first * second / (first + second) ** 2)


def test_sums_of_squares_that_are_multiplied_out() -> None:
    b, v, _ = leaves()
    shifted = b.sum(b.power(b.add(b.sub(v["s"], b.unsqueeze(v["c"], 1)), 0.5), 2), [1])
    plain = b.sum(b.power(b.sub(v["s"], b.unsqueeze(v["c"], 1)), 2), [1])
    for view, expected in [
        (b.add(b.sum(b.power(b.add(v["s"], 0.5), 2), [1]), 0), True),
        (b.scale(b.sum(b.power(b.add(v["s"], 0.5), 2), [1]), 3), True),
        (b.add(b.sum(b.power(b.add(v["s"], 0.5), 2), [1]), -0.01), False),
        (b.scale(b.sum(b.power(b.add(v["s"], 0.5), 2), [1]), -3), False),
        (b.sub(b.sum(b.power(v["s"], 2), [1]), 1), False),
        (b.add(shifted, b.scale(plain, -1)), False),
    ]:
        assert is_sum_of_squares(b.pool, view) is expected


def test_sigmoid_of_what_may_be_zero_stays_a_sigmoid() -> None:
    b, v, _ = leaves()
    unknown = b.sub(b.log(v["x"]), b.log(b.exp(v["y"])))
    assert sigmoid(b, unknown).term.operation.name == "sigmoid"
    scaled = b.scale(b.log(b.sum(b.exp(v["s"]), [1])), 2)
    assert sigmoid(b, scaled).term.operation.name == "sigmoid"
