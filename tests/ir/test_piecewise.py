"""Values assembled from parts: what the normal form makes of them has the values of torch, and one form."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tests.ir.test_algebra import RULES, Pair, Rule, check_random_program
from verifycompile.ir.term import TermPool
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.catalogue import COMBINATION_LEMMAS, product_lemma
from verifycompile.rewrites.operators.constant_matrix import window
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.ordering import roll
from verifycompile.rewrites.operators.padding import constant_pad_nd
from verifycompile.rewrites.operators.windows import slice_copy
from verifycompile.rewrites.parts.piecewise import Piecewise


def piecewise_pool() -> TermPool:
    pool = TermPool()
    pool.contraction_rules.append(product_lemma)
    pool.combination_rules.extend(COMBINATION_LEMMAS)
    pool.piecewise = Piecewise()
    return pool


def _slice(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    dim = draw.randrange(view.rank)
    length = draw.randint(1, value.shape[dim])
    start = draw.randint(0, value.shape[dim] - length)
    return slice_copy(b, view, dim, start, start + length, 1), value.narrow(dim, start, length)


def _filled(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    padding, number = [draw.randint(0, 2), draw.randint(0, 2)], draw.choice([0, -3, 2])
    if not view.rank:
        return view, value
    return constant_pad_nd(b, view, padding, number), torch.nn.functional.pad(value, padding, value=number)


def _join(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    """Parts of one value: neighbours, overlapping, or in another order."""
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    dim = draw.randrange(view.rank)
    size = value.shape[dim]
    spans = [sorted(draw.sample(range(size + 1), 2)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.5:
        spans = [[0, spans[0][0]], spans[0], [spans[0][1], size]]
    spans = [span for span in spans if span[0] < span[1]]
    parts = [slice_copy(b, view, dim, start, stop, 1) for start, stop in spans]
    return b.concatenate(parts, dim), torch.cat([value.narrow(dim, s, t - s) for s, t in spans], dim)


def _rolled(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    shift, dim = draw.randint(-3, 3), draw.randrange(view.rank)
    return roll(b, view, [shift], [dim]), torch.roll(value, shift, dim)


def _mask(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    view, value = draw.choice(pairs)
    number = draw.choice([0, -3, 2])
    mask = b.equal(view, number)
    if draw.random() < 0.5:
        return b.mul(b.negate(mask), view), (value != number) * value
    return b.mul(mask, 2), 2 * (value == number).double()


def _counted(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    """What a value is multiplied by or beside: masks and angles of its own positions, counted from anywhere on."""
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    if not view.rank:
        return view, value
    first, other, dim = draw.randint(-3, 3), draw.randint(-3, 3), draw.randrange(view.rank)
    counters = [b.iota(value.shape[-1], first), b.unsqueeze(b.iota(value.shape[dim], other), 1)]
    numbers = torch.arange(value.shape[-1]) + first, torch.arange(value.shape[dim])[:, None] + other
    mask, factors = b.less_equal(*counters), (numbers[0] <= numbers[1]).double()
    kind = draw.choice(["angle", "mask", "equal"])
    if kind == "angle":
        mask, factors = b.pointwise(FUNCTIONS["cos"], counters[0]), numbers[0].double().cos()
    elif kind == "equal":
        mask, factors = b.equal(counters[0], int(numbers[0][-1])), (numbers[0] == numbers[0][-1]).double()
    if kind == "mask" and (view.rank < 2 or dim != view.rank - 2):
        return mask, factors
    return (b.mul(view, mask), value * factors) if draw.random() < 0.7 else (b.add(view, mask), value + factors)


def _convolved(draw: random.Random, b: Builder, pairs: list[Pair]) -> Pair:
    """Sliding windows over a dimension, or windows put back where they came from."""
    view, value = draw.choice([p for p in pairs if p[0].rank] or pairs)
    line = [p for p in pairs if p[1].dim() == 1]
    if not view.rank or not line:
        return view, value
    kernel, weights = draw.choice(line)
    dim, size, reach = draw.randrange(view.rank), value.shape[view.rank - 1], weights.shape[0]
    view, value = b.transpose(view, dim, -1), value.transpose(dim, -1)
    size = value.shape[-1]
    stride, padding, dilation = draw.choice([1, 1, 2]), draw.randint(-1, 3), draw.choice([1, 1, 2])
    other = draw.randint(1, 7)
    back = draw.random() < 0.5
    matrix = window(b, stride, padding, dilation, *((size, reach, other) if back else (other, reach, size)))
    dense = torch.zeros([int(n) for n in matrix.shape]).double()
    for o, k in itertools.product(range(dense.shape[0]), range(reach)):
        x = o * stride - padding + k * dilation
        if 0 <= x < dense.shape[2]:
            dense[o, k, x] = 1
    read, made = ("o", "x") if back else ("x", "o")
    result = b.contraction(f"*n {read}, k, o k x -> *n {made}", view, kernel, matrix)
    return result, torch.einsum(f"...{read},k,okx->...{made}", value, weights, dense)


PARTS: list[Rule] = [_slice, _slice, _filled, _join, _join, _rolled, _mask, _convolved, _convolved, _counted, _counted]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_have_the_values_of_torch(seed: int) -> None:
    draw = random.Random(seed)
    shapes = ((4, 3), (3, 4), (2, 6), (6,), (5, 1), (3,))
    check_random_program(piecewise_pool(), draw, shapes, 16, lambda: PARTS if draw.random() < 0.5 else RULES)
