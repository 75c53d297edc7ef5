"""Values that are the same sum of products are found equal, however their factors were taken together; others not."""

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.term import TermPool
from verifycompile.refinement.products import same_products
from verifycompile.rewrites.builder import Builder

SHAPES = {"x": (3, 4), "y": (3, 4), "z": (3, 4), "w": (4, 2), "v": (4, 2)}


@pytest.fixture
def b():
    return Builder(TermPool())


@pytest.fixture
def leaves(b):
    return {name: b.pool.leaf(name, shape) for name, shape in SHAPES.items()}


def matmul(b, left, right):
    return b.contraction("m k, k n -> m n", left, right)


def equal_numbers(left, right):
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in SHAPES.items()}
    return torch.allclose(Evaluator(values).view(left), Evaluator(values).view(right))


def test_sums_inside_of_sums(b, leaves):
    x, y, z, w, v = leaves.values()
    left = matmul(b, b.mul(x, b.add(y, b.mul(z, b.add(x, y)))), b.sub(w, v))
    inner = b.add(b.mul(x, y), b.mul(x, z, x), b.mul(x, y, z))
    right = b.sub(matmul(b, inner, w), matmul(b, inner, v))
    assert left != right
    assert equal_numbers(left, right)
    assert same_products(b.pool, left, right)


def test_what_cancels_is_nothing(b, leaves):
    x, y, z, w, _ = leaves.values()
    left = b.sub(matmul(b, b.add(x, y), w), matmul(b, b.sub(y, z), w))
    assert same_products(b.pool, left, matmul(b, b.add(x, z), w))


def test_bound_dimensions_stay_apart(b, leaves):
    x, y = leaves["x"], leaves["y"]
    rows = b.contraction("m k -> m", b.mul(x, b.add(x, y)))
    squared = b.mul(rows, rows)
    same = b.contraction("m k -> m", b.mul(x, b.add(x, y), x, b.add(x, y)))
    assert not same_products(b.pool, squared, same)
    assert not equal_numbers(squared, same)
    expanded = b.add(b.contraction("m k, m k -> m", x, x), b.contraction("m k, m k -> m", x, y))
    assert same_products(b.pool, squared, b.mul(expanded, expanded))


@pytest.mark.parametrize("factor", [0, 1, 3, -2])
def test_another_factor(b, leaves, factor):
    x, y, _, w, _ = leaves.values()
    left = matmul(b, b.add(x, b.scale(y, 2)), w)
    right = b.combination((1, matmul(b, x, w)), (factor, matmul(b, y, w)))
    assert not same_products(b.pool, left, right)


def test_other_shapes_and_too_many_products(b, leaves):
    x, y, z, w, _ = leaves.values()
    assert not same_products(b.pool, x, w)
    total = b.add(x, y, z)
    power = b.mul(*([total] * 6))
    assert not same_products(b.pool, power, b.mul(total, b.mul(*([total] * 5))))
