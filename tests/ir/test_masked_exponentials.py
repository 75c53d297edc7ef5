"""Exponentials of masked scores: minus infinity is zero there, however the mask is written."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.exponential import is_minus_infinity, is_positive, is_positive_number, may_be_lowest
from verifycompile.ir.scalar import ONE, as_scalar
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window import range_view
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.attention import attention, attention_backward
from verifycompile.rewrites.operators.attention_kernels import cudnn_attention, cudnn_attention_backward
from verifycompile.rewrites.operators.diagonals import triangle
from verifycompile.rewrites.operators.elementwise import choose
from verifycompile.rewrites.operators.reduction import extreme
from verifycompile.rewrites.operators.softmax import softmax_of

KEEP = torch.tensor([[True, False, True], [False, True, True]])


def setting() -> tuple[Builder, View, View, Evaluator]:
    b = Builder(TermPool())
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    evaluator = Evaluator({"x": x, "keep": KEEP})
    return b, b.pool.leaf("x", (2, 3)), b.pool.leaf("keep", (2, 3), indicator=True), evaluator


def forms(b: Builder, x: View, keep: View) -> list[View]:
    """Scores that are minus infinity where ``keep`` is zero."""
    minus = b.full(-math.inf, (2, 3))
    return [
        choose(b, keep, x, -math.inf),
        choose(b, b.negate(keep), -math.inf, x),
        b.add(x, choose(b, keep, 0, minus)),
        b.add(x, choose(b, b.negate(keep), minus, 0)),
    ]


@pytest.mark.parametrize("position", range(4))
def test_masked_exponential(position: int) -> None:
    b, x, keep, evaluator = setting()
    expected = b.mul(b.exp(x), keep)
    view = b.exp(forms(b, x, keep)[position])
    assert view == expected
    torch.testing.assert_close(evaluator.view(view), torch.where(KEEP, evaluator.view(b.exp(x)), 0.0))


def test_what_is_positive_and_what_is_minus_infinity() -> None:
    """A sum under a mask is, where the mask takes some element of every row, and none of its factors may be zero."""
    b, x, keep, _ = setting()
    e, half, minus, size = b.exp(x), as_scalar(0.5), b.full(-math.inf, (2, 3)), sympy.Symbol("s", integer=True)
    causal = b.less_equal(b.iota(3), b.unsqueeze(b.iota(3), 1))
    rows = b.exp(b.pool.leaf("y", (3, 3)))
    narrow = [b.pool.leaf(name, (2, 2)) for name in ("u", "v")]
    joined = b.concatenate([e, b.exp(narrow[0])], 1)
    part = window(b.pool, joined, 1, 1, 3)
    positive = [e, joined, part, b.mul(e, e), b.power(b.add(e, b.exp(b.scale(x, 2))), 0.5), b.add(e, b.exp(b.scale(x, 2))), b.sum(b.mul(causal, rows), [1])]
    for view in positive:
        assert is_positive(view), view
    within = [range_view(b.pool, 1, (3, 3), span) for span in ((0, 1), (2, 3), (1, 1), (3, 5), (-2, 0))]
    for number, mask in enumerate(within):
        assert is_positive(b.sum(b.mul(mask, rows), [1])) is (number < 2), mask
    strict = b.less(b.iota(3), b.unsqueeze(b.iota(3), 1))
    for view in (
        b.mul(within[0], rows), b.sum(b.mul(within[0], rows), [0]), b.sum(b.mul(within[0], b.pool.leaf("y", (3, 3))), [1]),
        b.sum(b.mul(within[0], causal, rows), [1]),
        b.concatenate([e, narrow[0]], 1), b.concatenate([e, b.exp(narrow[0]).scaled(-ONE)], 1), b.pad(e, 1, 1, 5),
        b.concatenate([e, b.full(0, (2, 2))], 1), window(b.pool, b.concatenate([narrow[1], x], 1), 1, 1, 3),
        x, keep, e.scaled(half), e.scaled(-ONE), b.sub(e, b.exp(b.scale(x, 2))), b.add(e, x), b.mul(e, keep), b.mul(causal, rows),
        b.sum(b.mul(strict, rows), [1]), b.sum(b.mul(keep, e), [1]), b.power(x, 0.5), b.add(e, b.scale(x, 2)), b.combination((size, e), (1, x)),
        b.sum(b.mul(causal, rows, b.pool.leaf("z", (3, 3), indicator=True)), [1]),
    ):  # fmt: skip
        assert not is_positive(view), view
    assert is_minus_infinity(minus)
    assert is_minus_infinity(minus.scaled(half))
    for view in (minus.scaled(-ONE), minus.scaled(ONE * 0), minus.scaled(size), x.scaled(-ONE)):
        assert not is_minus_infinity(view), view
    assert [is_positive_number(n) for n in (half, ONE, ONE * 0, -half, size)] == [True, True, False, False, False]
    assert b.exp(b.log(b.sum(b.mul(keep, e), [1]))) == b.sum(b.mul(keep, e), [1])
    for view in (b.sum(b.mul(keep, x), [1]), b.sum(b.mul(keep, e), [1]).scaled(-ONE), x):
        assert b.exp(b.log(view)).term.operation.name == "exp", view


def test_smallest_of_negated_scores_under_a_mask() -> None:
    """Each row has a key that is seen: the largest score is a number, and so is the smallest negated one; and no other
    extreme of them is, nor one where the mask hides a whole row.
    """
    b = Builder(TermPool())
    y, places = b.pool.leaf("y", (3, 3)), b.iota(3)
    seen, first_hidden = (b.less_equal(places, b.add(b.unsqueeze(places, 1), shift)) for shift in (0, -1))
    for mask in (seen, first_hidden):
        infinite = b.full(math.inf, (3, 3))
        for scores in (choose(b, mask, y, -math.inf), b.add(y, choose(b, mask, 0, b.scale(infinite, -1)))):
            negated = b.scale(scores, -1)
            assert may_be_lowest(extreme(b, scores, [1], True, "max")) is (mask is first_hidden)
            assert may_be_lowest(extreme(b, negated, [1], True, "min")) is (mask is first_hidden)
            assert may_be_lowest(extreme(b, scores, [1], True, "min"))
            assert may_be_lowest(extreme(b, negated, [1], True, "max"))


def test_other_infinities_stay() -> None:
    b, x, keep, _ = setting()
    expected = b.mul(b.exp(x), keep)
    for view in (choose(b, keep, x, math.inf), choose(b, keep, -math.inf, x), choose(b, keep, x, -1e9)):
        assert b.exp(view) != expected
    assert b.exp(b.full(-math.inf, (2, 3))).is_zero


def test_triangles_are_comparisons_of_positions() -> None:
    b = Builder(TermPool())
    ones, row, column = b.full(1, (4, 4)), b.unsqueeze(b.iota(4), 1), b.iota(4)
    assert triangle(b, ones, 0, lower=True) == b.expand(b.less_equal(column, row), (4, 4))
    assert triangle(b, ones, -1, lower=True) == b.expand(b.less(column, row), (4, 4))
    assert triangle(b, ones, 1, lower=False) == b.expand(b.less(row, column), (4, 4))
    assert b.negate(triangle(b, ones, 1, lower=False)) == triangle(b, ones, 0, lower=True)


def test_the_exponential_of_a_logarithm_of_a_masked_sum() -> None:
    b, x, keep, evaluator = setting()
    total = b.sum(b.mul(b.exp(x), keep), [1])
    inverse = b.exp(b.scale(b.log(total), -1))
    assert inverse == b.power(total, -1)
    torch.testing.assert_close(evaluator.view(inverse), 1 / evaluator.view(total))
    other = b.sum(b.mul(b.exp(x), x), [1])
    assert b.exp(b.scale(b.log(other), -1)) != b.power(other, -1)


def test_rows_without_a_key_are_zero_in_fused_attention() -> None:
    """Written out, a softmax is no number there: the two are equal only where the mask leaves no row without keys."""
    generator = torch.Generator().manual_seed(0)
    leaves = {name: torch.randn(1, 1, rows, 4, dtype=torch.float64, generator=generator) for name, rows in ROWS.items()}
    kept = torch.tensor([[True, False, True], [False, False, False]])
    evaluator = Evaluator({**leaves, "kept": kept})
    b = Builder(TermPool())
    query, key, value = (b.pool.leaf(name, tuple(leaf.shape)) for name, leaf in leaves.items())
    minus = b.full(-math.inf, (2, 3))
    mask = choose(b, b.pool.leaf("kept", (2, 3), indicator=True), 0, minus)
    output, logarithm = attention(b, query, key, value, 0.0, False, mask, None)
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *leaves.values(), attn_mask=torch.zeros(2, 3).double().masked_fill(~kept, -math.inf)
    )
    torch.testing.assert_close(evaluator.view(output), expected[0])
    torch.testing.assert_close(evaluator.view(logarithm), expected[1])
    _, infinite, *_ = cudnn_attention(b, query, key, value, mask, True, 0.0, False, None)
    empty = expected[1].masked_fill(~kept.any(1), -math.inf)  # as measured on a GPU
    torch.testing.assert_close(evaluator.view(infinite), empty[..., None])
    gradients = [
        attention_backward(b, output, query, key, value, output, logarithm, 0.0, False, mask, None)[:3],
        cudnn_attention_backward(
            b, output, query, key, value, output, infinite, None, None, mask, None, None, 2, 3, 0.0, False, None
        ),
    ]
    assert gradients[0] == gradients[1]
    assert all(evaluator.view(gradient).isfinite().all() for gradient in gradients[1])
    scores = b.add(b.scale(b.contraction("b h q e, b h k e -> b h q k", query, key), 0.5), mask)
    written_out = b.contraction("b h q k, b h k e -> b h q e", softmax_of(b, scores, -1), value)
    assert written_out != output


ROWS = {"query": 2, "key": 3, "value": 3}


@pytest.mark.parametrize(
    ("reach", "size", "seen"), [(0, 2, True), (-1, 2, False), (0, 0, False), (2, 2, True), (2, 0, False)]
)
def test_window_sees_a_key_in_every_row(reach: int, size: int, seen: bool) -> None:
    """``key <= query + reach`` and ``query - key < size``, of four rows and keys; or ``key > query`` for 0."""
    b = Builder(TermPool())
    rows, keys = b.unsqueeze(b.iota(4), 1), b.iota(4)
    edge = b.add(rows, reach)
    other = b.less(b.sub(rows, keys), size) if size else b.less_equal(b.add(rows, 1), keys)
    mask = b.mul(b.less_equal(keys, edge), other)
    total = b.sum(b.mul(b.exp(b.pool.leaf("x", (4, 4))), mask), [1])
    found = Evaluator({"x": torch.zeros(4, 4)}).view(mask).any(1).all()
    assert is_positive(total) == seen
    assert bool(found) or not seen
