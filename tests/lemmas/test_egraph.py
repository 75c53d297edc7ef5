"""Equalities that normal form leaves open, and their negative twins."""

import pytest

from verifycompile.ir.term import TermPool
from verifycompile.refinement import egraph
from verifycompile.refinement.egraph import prove_equal
from verifycompile.rewrites.builder import Builder


@pytest.fixture
def b():
    return Builder(TermPool())


@pytest.fixture
def leaves(b):
    shapes = {"x": (4, 8), "y": (4, 8), "w": (8, 6), "v": (8, 6), "z": (4, 6)}
    return {name: b.pool.leaf(name, shape) for name, shape in shapes.items()}


def matmul(b, left, right):
    return b.contraction("m k, k n -> m n", left, right)


def test_matmul_of_a_sum(b, leaves):
    left = matmul(b, b.add(leaves["x"], b.scale(leaves["y"], 2)), leaves["w"])
    right = b.combination((1, matmul(b, leaves["x"], leaves["w"])), (2, matmul(b, leaves["y"], leaves["w"])))
    proof = prove_equal(left, right)
    assert proof is not None
    assert {"multiply-distributes", "sum-distributes"} <= {name for name, _ in proof.lemmas}


@pytest.mark.parametrize("factor", [0, 1, 3, -2])
def test_matmul_of_a_sum_with_another_factor(b, leaves, factor):
    left = matmul(b, b.add(leaves["x"], b.scale(leaves["y"], 2)), leaves["w"])
    right = b.combination((1, matmul(b, leaves["x"], leaves["w"])), (factor, matmul(b, leaves["y"], leaves["w"])))
    assert prove_equal(left, right) is None


def test_sum_of_two_weights(b, leaves):
    left = b.add(matmul(b, leaves["x"], b.add(leaves["w"], leaves["v"])), leaves["z"])
    right = b.add(matmul(b, leaves["x"], leaves["v"]), leaves["z"], matmul(b, leaves["x"], leaves["w"]))
    assert prove_equal(left, right) is not None


def test_swapped_operands_are_not_equal(b, leaves):
    left = matmul(b, leaves["x"], b.add(leaves["w"], leaves["v"]))
    right = b.add(matmul(b, leaves["x"], leaves["v"]), matmul(b, leaves["y"], leaves["w"]))
    assert prove_equal(left, right) is None


def test_a_transposed_leaf_is_another_leaf(b):
    square = b.pool.leaf("s", (4, 4))
    other = b.pool.leaf("t", (4, 4))
    left = b.mul(b.add(square, other), other)
    right = b.add(b.mul(b.transpose(square, 0, 1), other), b.mul(other, other))
    assert prove_equal(left, right) is None


def test_views_of_other_shapes_are_not_compared(b, leaves):
    assert prove_equal(leaves["x"], leaves["w"]) is None


def test_partial_sums_distribute():
    b = Builder(TermPool(), mesh=(2,))
    shape = (2, 4, 8)
    x, y = (b.pool.leaf(name, shape) for name in "xy")
    w = b.pool.leaf("w", (2, 8, 6))
    left = matmul(b, b.sub(x, y), w)
    right = b.sub(matmul(b, x, w), matmul(b, y, w))
    assert prove_equal(left, right) is not None
    assert prove_equal(left, b.sub(matmul(b, y, w), matmul(b, x, w))) is None


@pytest.mark.parametrize(
    "budget",
    [("_MAX_NODES", 3, "3 e-nodes"), ("_MAX_SECONDS", 0.0, "0 milliseconds"), ("_MAX_ROUNDS", 1, "1 rounds")],
)
def test_what_ran_out_is_named(b, leaves, monkeypatch, budget):
    name, limit, text = budget
    left = matmul(b, b.add(leaves["x"], b.scale(leaves["y"], 2)), leaves["w"])
    right = b.combination((1, matmul(b, leaves["x"], leaves["w"])), (2, matmul(b, leaves["y"], leaves["w"])))
    egraph.take_exhausted()
    assert prove_equal(left, right) is not None
    assert egraph.take_exhausted() == ()
    monkeypatch.setattr(egraph, name, limit)
    assert prove_equal(left, right) is None
    assert egraph.take_exhausted() == (text,)
