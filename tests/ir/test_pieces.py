"""What is done to a concatenation is done to its pieces; signs that are known by construction."""

from __future__ import annotations

import dataclasses

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from tests.ir.views import Leaves, leaf
from verifycompile.ir.pieces import CONCATENATE, STACK, concatenated_dim, opened_stack, pieces_of
from verifycompile.ir.sign import is_nonnegative
from verifycompile.ir.size import Size
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.rewrites.builder import Builder
from verifycompile.rewrites.operators.elementwise import FUNCTIONS
from verifycompile.rewrites.operators.reduction import reduce_extreme


def pair(shape: tuple[int, int], other: tuple[int, int]) -> tuple[Builder, View, View, Evaluator, torch.Tensor, int]:
    leaves: Leaves = {}
    b = Builder(TermPool())
    dim = 0 if shape[1] == other[1] else 1
    left, right = leaf(b.pool, leaves, *shape), leaf(b.pool, leaves, *other)
    return b, left, right, Evaluator(leaves), torch.cat(list(leaves.values()), dim), dim


@pytest.mark.parametrize("shapes", [((2, 3), (4, 3)), ((2, 1), (2, 5)), ((1, 1), (1, 1))])
def test_pieces(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    b, left, right, evaluator, value, dim = pair(*shapes)
    both = b.scale(b.concatenate([left, b.scale(right, 2)], dim), 3)
    value = value.clone()
    value.narrow(dim, shapes[0][dim], shapes[1][dim]).mul_(2)
    value *= 3
    assert concatenated_dim(both) == dim
    first, second = pieces_of(both, dim)
    torch.testing.assert_close(torch.cat([evaluator.view(first), evaluator.view(second)], dim), value)
    torch.testing.assert_close(evaluator.view(b.power(both, 2)), value**2)
    torch.testing.assert_close(evaluator.view(b.sum(both, [dim])), value.sum(dim))
    torch.testing.assert_close(evaluator.view(b.sum(both, None)), value.sum())
    torch.testing.assert_close(evaluator.view(reduce_extreme(b.pool, both, [dim], "max")), value.amax(dim))
    torch.testing.assert_close(evaluator.view(reduce_extreme(b.pool, both, [0, 1], "min")), value.amin())


def test_the_sum_over_a_concatenation_is_that_of_its_pieces() -> None:
    b, left, right, _, _, dim = pair((2, 3), (4, 3))
    both = b.concatenate([left, right], dim)
    assert b.sum(both, None) == b.add(b.sum(left, None), b.sum(right, None))
    assert b.power(both, 2).term.operation is CONCATENATE


def test_a_part_of_a_concatenation_is_not_taken_for_it() -> None:
    b, left, right, _, _, dim = pair((2, 3), (4, 3))
    both = b.concatenate([left, right], dim)
    assert concatenated_dim(b.reshape(both, [2, 3, 3])) is None
    assert concatenated_dim(b.reshape(both, [18])) is None
    assert concatenated_dim(left) is None
    assert concatenated_dim(b.concatenate([b.pool.leaf("row", (2,)), b.pool.leaf("rows", (3,))], 0)) == 0


def test_pieces_whose_rows_are_read_in_another_order() -> None:
    """Two digits of one operand are its part of the dimension."""
    leaves: Leaves = {}
    b = Builder(TermPool())
    turned = b.reshape(b.transpose(leaf(b.pool, leaves, 2, 3), 0, 1), [6])
    both = b.concatenate([turned, leaf(b.pool, leaves, 5)], 0)
    assert concatenated_dim(both) == 0
    first, second = pieces_of(both, 0)
    assert (first, second) == (turned, b.pool.leaf("x1", (5,)))
    expected = torch.cat([leaves["x0"].t().reshape(6), leaves["x1"]])
    torch.testing.assert_close(torch.cat([Evaluator(leaves).view(piece) for piece in (first, second)]), expected)


def test_within_one_piece_of_a_stack_the_piece_is_read() -> None:
    b, left, right, _, _, _ = pair((2, 3), (2, 3))
    pieces = [left, right, b.scale(left, 2), b.scale(right, 2)]
    stacked = b.concatenate([b.unsqueeze(piece, 0) for piece in pieces], 0)
    assert stacked.term.operation is STACK

    def read(*digits: tuple[int, Size, int]) -> View:
        place = stacked.term.fresh[0]
        axes = [digits if k == place else ((k, 1, size),) for k, size in enumerate(stacked.term.shape)]
        return dataclasses.replace(stacked, axes=tuple(axes))

    for number, piece in enumerate(pieces):
        found = opened_stack(read((CONSTANT, number, 4)))
        assert (found.term, found.coefficient) == (piece.term, piece.coefficient)
    for view in (stacked, read((CONSTANT, sympy.Symbol("r"), 4)), read((CONSTANT, 1, 2), (stacked.term.fresh[0], 1, 2)), left):
        assert opened_stack(view) is view


def test_the_diagonal_of_a_stack_has_no_pieces() -> None:
    b, left, right, evaluator, _, _ = pair((2, 3), (2, 3))
    sums: list[View] = []
    for views in ((left, right), (right, left)):
        both = b.concatenate(views, 0)
        assert both.term.operation is STACK
        assert concatenated_dim(both) == 0
        axes = [((1, 1, 3),) if size == 3 else ((0, 1, 2),) for size in both.term.shape]
        diagonal = dataclasses.replace(both, shape=(2, 3), axes=tuple(axes))
        sums.append(b.sum(diagonal, [0]))
        value = evaluator.view(views[0])[0] + evaluator.view(views[1])[1]
        torch.testing.assert_close(evaluator.view(sums[-1]), value)
    assert sums[0] != sums[1]


def test_norm_of_norms() -> None:
    b, left, right, evaluator, value, _ = pair((2, 3), (4, 3))
    norms = [b.power(b.sum(b.power(v, 2), None), 0.5) for v in (left, right)]
    stack = b.concatenate([b.unsqueeze(norm, 0) for norm in norms], 0)
    total = b.power(b.sum(b.power(stack, 2), None), 0.5)
    assert total == b.power(b.add(b.sum(b.power(left, 2), None), b.sum(b.power(right, 2), None)), 0.5)
    torch.testing.assert_close(evaluator.view(total), value.norm())


def test_the_square_of_a_root_needs_a_sign() -> None:
    b, left, _, _, _, _ = pair((2, 3), (4, 3))
    assert b.power(b.power(b.mul(left, left), 0.5), 2) == b.mul(left, left)
    assert b.power(b.power(left, 0.5), 2) != left
    assert b.power(b.power(left, 0.5), -2) != b.power(left, -1)
    assert b.power(b.power(b.mul(left, left), -0.5), 2) == b.power(b.mul(left, left), -1)
    root = b.power(b.add(left, 1), 0.5)
    assert b.power(root, -1) == b.power(b.add(left, 1), -0.5)
    assert b.power(b.scale(root, 2), -1) == b.scale(b.power(b.add(left, 1), -0.5), 0.5)


def test_signs() -> None:
    b, x, _, _, _, _ = pair((2, 3), (4, 3))
    y = b.pool.leaf("y", (2, 3))
    square, absolute = b.mul(x, x), b.pointwise(FUNCTIONS["abs"], y)
    for view in (
        square, absolute, b.sum(square, None), b.mul(square, y, y), b.add(square, absolute, 1), b.exp(x),
        b.less(x, y), b.power(x, 0.5), b.power(x, 4), b.power(absolute, -1), reduce_extreme(b.pool, square, [0], "max"),
        b.pool.zero((2, 3)), b.mul(x, x, absolute), b.pointwise(FUNCTIONS["abs"], b.mul(x, y)),
    ):  # fmt: skip
        assert is_nonnegative(view), view.term
    for view in (
        x, b.scale(square, -1), b.mul(x, y), b.mul(x, x, y), b.sub(square, 1), b.power(x, -1), b.power(x, 3),
        b.contraction("m k, n k -> m n", x, x), b.sub(square, absolute), reduce_extreme(b.pool, x, [0], "max"),
    ):  # fmt: skip
        assert not is_nonnegative(view), view.term
