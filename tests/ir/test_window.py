"""Windows: what is computed on parts of uneven sizes has the values of the parts, and assembled it is the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.validate_terms import validate_pool
from verifycompile.ir.algebra import combine, sum_over
from verifycompile.ir.exponential import MAXIMUM
from verifycompile.ir.term import TermPool, View
from verifycompile.ir.window_moves import window
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, product_lemma
from verifycompile.rewrites.parts.ranges import join_windows

ROWS, WIDTH = 7, 3
SPLITS = [(4, 3), (3, 3, 1), (1, 6), (2, 1, 4), (5, 1, 1)]
Program = Callable[[Builder, View, View], View]


def product(b: Builder, x: View, w: View) -> View:
    return b.contraction("r k, k n -> r n", x, w)


def clipped(b: Builder, x: View, w: View) -> View:
    return b.pointwise(MAXIMUM, product(b, x, w), 0)


def softmax(b: Builder, x: View, w: View) -> View:
    weights = b.exp(product(b, x, w))
    return b.divide(weights, b.sum(weights, [-1], keepdim=True))


def residual(b: Builder, x: View, w: View) -> View:
    return b.combination((1, clipped(b, x, w)), (-2, x), (3, b.mul(x, x)))


PROGRAMS = (product, clipped, softmax, residual)


def setting() -> tuple[Builder, View, View, Evaluator]:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    x, w = pool.leaf("x", (ROWS, WIDTH)), pool.leaf("w", (WIDTH, WIDTH))
    values = {
        "x": torch.randn(ROWS, WIDTH, dtype=torch.float64),
        "w": torch.randn(WIDTH, WIDTH, dtype=torch.float64),
    }
    return Builder(pool), x, w, Evaluator(values)


def parts(b: Builder, x: View, lengths: Sequence[int], dim: int = 0) -> list[View]:
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [window(b.pool, x, dim, start, length) for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("lengths", SPLITS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_parts_of_the_rows(program: Program, lengths: tuple[int, ...]) -> None:
    b, x, w, evaluator = setting()
    whole = program(b, x, w)
    found = [program(b, part, w) for part in parts(b, x, lengths)]
    expected = evaluator.view(whole).split(lengths)
    for part, value in zip(found, expected, strict=True):
        torch.testing.assert_close(evaluator.view(part), value)
    assert join_windows(b.pool, found, 0) == whole
    sums = [sum_over(b.pool, part, [0]) for part in found]
    for part, value in zip(sums, expected, strict=True):
        torch.testing.assert_close(evaluator.view(part), value.sum(0))
    assert combine(b.pool, sums) == sum_over(b.pool, whole, [0])
    validate_pool(b.pool)


@pytest.mark.parametrize("lengths", [(2, 1), (1, 2), (1, 1, 1)])
def test_parts_of_the_contracted_dimension(lengths: tuple[int, ...]) -> None:
    b, x, w, evaluator = setting()
    rows = [product(b, p, q) for p, q in zip(parts(b, x, lengths, 1), parts(b, w, lengths, 0), strict=True)]
    total = combine(b.pool, rows)
    torch.testing.assert_close(evaluator.view(total), evaluator.leaves["x"] @ evaluator.leaves["w"])
    assert total == product(b, x, w) or lengths == (1, 1, 1)


@pytest.mark.parametrize(
    "spans",
    [[(0, 3)], [(0, 3), (4, 7)], [(0, 4), (3, 7)], [(0, 3), (3, 6)], [(1, 4), (4, 7)], [(0, 4), (0, 4), (4, 7)]],
)
def test_ranges_that_leave_out_or_repeat_rows(spans: list[tuple[int, int]]) -> None:
    b, x, w, evaluator = setting()
    found = [residual(b, window(b.pool, x, 0, start, stop - start), w) for start, stop in spans]
    total = combine(b.pool, [sum_over(b.pool, part, [0]) for part in found])
    value = evaluator.view(residual(b, x, w))
    torch.testing.assert_close(evaluator.view(total), sum(value[start:stop].sum(0) for start, stop in spans))
    assert total != sum_over(b.pool, residual(b, x, w), [0])


def test_windows_in_another_order_or_of_another_value_are_not_joined() -> None:
    b, x, w, _ = setting()
    first, second = parts(b, x, (4, 3))
    assert join_windows(b.pool, [second, first], 0) is None
    assert join_windows(b.pool, [first, b.scale(second, 2)], 0) is None
    assert join_windows(b.pool, [first, product(b, second, w)], 0) is None
    assert join_windows(b.pool, [first, x], 0) is None


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_on_windows(seed: int) -> None:
    """Operands windowed here and there, alike or not: the value is always the one that torch computes."""
    draw = random.Random(seed)
    b, x, w, evaluator = setting()
    pairs = [(x, evaluator.leaves["x"]), (w, evaluator.leaves["w"]), (b.transpose(x, 0, 1), evaluator.leaves["x"].t())]
    for _ in range(14):
        view, value = draw.choice(pairs)
        kind = draw.choice(["window", "window", "add", "multiply", "sum", "clip", "product", "transpose"])
        alike = [p for p in pairs if p[1].shape == value.shape]
        if kind == "window" and min(value.shape) > 0:
            dim = draw.randrange(2)
            start = draw.randrange(value.shape[dim])
            length = draw.randint(1, value.shape[dim] - start)
            pairs.append((window(b.pool, view, dim, start, length), value.narrow(dim, start, length)))
        elif kind == "add":
            other = draw.choice(alike)
            pairs.append((b.combination((1, view), (2, other[0])), value + 2 * other[1]))
        elif kind == "multiply":
            other = draw.choice(alike)
            pairs.append((b.mul(view, other[0]), value * other[1]))
        elif kind == "sum":
            dim = draw.randrange(2)
            pairs.append((b.sum(view, [dim], keepdim=True), value.sum(dim, keepdim=True)))
        elif kind == "clip":
            pairs.append((b.pointwise(MAXIMUM, view, 0), value.clamp(min=0)))
        elif kind == "transpose":
            pairs.append((b.transpose(view, 0, 1), value.t()))
        else:
            fitting = [p for p in pairs if p[1].shape[0] == value.shape[1]]
            if fitting:
                other = draw.choice(fitting)
                pairs.append((product(b, view, other[0]), value @ other[1]))
    for view, value in pairs:
        torch.testing.assert_close(evaluator.view(view), value, msg=f"seed {seed}")
    validate_pool(b.pool)


@pytest.mark.parametrize(("start", "length"), [(0, 2), (1, 1), (2, 3), (1, 5), (4, 3), (0, 6), (3, 4)])
def test_slice_of_a_concatenation_is_made_of_its_pieces(start: int, length: int) -> None:
    b, x, w, evaluator = setting()
    joined = b.concatenate([product(b, w, w), b.narrow(x, 0, 0, 4)], 0)
    taken = b.narrow(joined, 0, start, length)
    torch.testing.assert_close(evaluator.view(taken), evaluator.view(joined).narrow(0, start, length))
    if (start, length) == (3, 4):
        assert taken == b.narrow(x, 0, 0, 4)


@pytest.mark.parametrize(("start", "length"), [(0, 3), (2, 3), (1, 2), (2, 1), (3, 3), (0, 9)])
def test_slice_of_a_padded_value(start: int, length: int) -> None:
    b, _, w, evaluator = setting()
    padded = b.pad(w, 0, 2, 9)
    taken = b.narrow(padded, 0, start, length)
    torch.testing.assert_close(evaluator.view(taken), evaluator.view(padded).narrow(0, start, length))
    if (start, length) == (2, 3):
        assert taken == w
