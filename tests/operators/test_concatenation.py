"""Concatenation: equal pieces may be sharded themselves, and a slice that is a piece is the piece."""

from __future__ import annotations

import pytest
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir import relabel
from verifycompile.ir.term import TermPool, View
from verifycompile.rewrites.builder import Builder

VALUES = {"x": torch.randn(3, 4).double(), "y": torch.randn(3, 4).double(), "z": torch.randn(3, 2).double()}


def leaves(pool: TermPool) -> tuple[View, View, View]:
    x, y, z = (pool.leaf(name, tuple(value.shape)) for name, value in VALUES.items())
    return x, y, z


def test_equal_pieces_whose_own_dimension_is_sharded() -> None:
    pool = TermPool()
    x, y, _ = leaves(pool)
    whole = Builder(pool).concatenate([x, y], 1)
    rank = Builder(pool, (2,))
    halves = [relabel.permute(relabel.split_dim(view, 1, 2, 2), (1, 0, 2)) for view in (x, y)]
    local = rank.concatenate(halves, 1)
    assert local.term is whole.term
    expected = torch.stack([torch.cat([VALUES["x"][:, c], VALUES["y"][:, c]], 1) for c in (slice(2), slice(2, 4))])
    torch.testing.assert_close(Evaluator(VALUES).view(local), expected)
    # The sum over the pieces' elements of both ranks is that of the whole.
    assert rank.sum(local, [1]).term is not Builder(pool).sum(whole, [1]).term


@pytest.mark.parametrize("order", ["xy", "xyx", "xz", "zxy", "zz"])
def test_slices_of_a_concatenation(order: str) -> None:
    pool = TermPool()
    named = dict(zip("xyz", leaves(pool), strict=True))
    b = Builder(pool)
    views = [named[name] for name in order]
    whole = b.concatenate(views, 1)
    value = torch.cat([VALUES[name] for name in order], 1)
    torch.testing.assert_close(Evaluator(VALUES).view(whole), value)
    start = 0
    for name, view in zip(order, views, strict=True):
        length = VALUES[name].shape[1]
        if order != "zz":
            assert b.narrow(whole, 1, start, length) == view
        start += length
    for start in range(value.shape[1]):
        for stop in range(start + 1, value.shape[1] + 1):
            part = b.narrow(whole, 1, start, stop - start)
            torch.testing.assert_close(Evaluator(VALUES).view(part), value[:, start:stop])


def test_a_slice_of_pieces_in_another_order_is_another_value() -> None:
    pool = TermPool()
    x, y, _ = leaves(pool)
    b = Builder(pool)
    assert b.concatenate([x, y], 1) != b.concatenate([y, x], 1)
    assert b.narrow(b.concatenate([x, y], 1), 1, 0, 4) == x
    assert b.narrow(b.transpose(b.concatenate([x, y], 1), 0, 1), 0, 4, 4) == b.transpose(y, 0, 1)
    doubled = b.scale(b.concatenate([x, b.scale(y, 3)], 1), 2)
    assert b.narrow(doubled, 1, 4, 4) == b.scale(y, 6)


def test_slices_of_padding() -> None:
    pool = TermPool()
    _, _, z = leaves(pool)
    b = Builder(pool)
    whole = b.pad(z, 1, 2, 6)
    value = torch.nn.functional.pad(VALUES["z"], (2, 2))
    for start in range(6):
        for stop in range(start + 1, 7):
            part = b.narrow(whole, 1, start, stop - start)
            torch.testing.assert_close(Evaluator(VALUES).view(part), value[:, start:stop])
    assert b.narrow(whole, 1, 2, 2) == z
    assert b.narrow(whole, 1, 0, 2).is_zero
    assert b.select(b.add(b.pad(b.unsqueeze(z, 0), 0, 0, 2), b.pad(b.unsqueeze(b.scale(z, 3), 0), 0, 1, 2)), 0, 0) == z
