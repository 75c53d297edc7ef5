"""Values that are concatenations, opened where one piece is read and cut where either side has an end."""

from __future__ import annotations

import pytest
import sympy
import torch

from tests.ir.evaluate import Evaluator
from verifycompile.ir.pieces import CONCATENATE
from verifycompile.ir.term import CONSTANT, TermPool, View
from verifycompile.refinement.part_by_part import _opened, _parts
from verifycompile.rewrites.builder import Builder

SIZES = 2, 4, 2
PARTS = tuple(torch.randn(size, 3, generator=torch.Generator().manual_seed(size)) for size in SIZES)


def _concatenated(b: Builder, sizes: tuple[int, ...] = SIZES) -> View:
    return b.concatenate([b.pool.leaf(f"x{number}", (size, 3)) for number, size in enumerate(sizes)], 0)


def _evaluator() -> Evaluator:
    return Evaluator({f"x{number}": part for number, part in enumerate(PARTS)})


@pytest.mark.parametrize(("number", "count"), [*((k, 4) for k in range(4)), *((k, 8) for k in range(8))])
def test_what_is_read_of_one_piece_is_of_the_piece(number: int, count: int) -> None:
    view = _concatenated(Builder(TermPool()))
    assert view.term.operation is CONCATENATE
    (fresh,) = view.term.fresh
    length = 8 // count
    axes = list(view.axes)
    axes[fresh] = ((CONSTANT, number, count), (0, 1, length)) if length > 1 else ((CONSTANT, number, count),)
    part = View(view.coefficient, view.term, (length, 3), tuple(axes)).scaled(view.coefficient * 2)
    opened = _opened(part)
    assert opened.term.operation is not CONCATENATE
    expected = 2 * torch.cat(PARTS)[number * length : (number + 1) * length].double()
    torch.testing.assert_close(_evaluator().view(opened), expected)


def test_what_is_read_of_two_pieces_stays() -> None:
    view = _concatenated(Builder(TermPool()), (3, 5))
    (fresh,) = view.term.fresh
    for number, count in ((0, 2), (1, 2), (1, 4)):
        axes = list(view.axes)
        axes[fresh] = ((CONSTANT, number, count), (0, 1, 8 // count))
        part = View(view.coefficient, view.term, (8 // count, 3), tuple(axes))
        assert _opened(part) == part


def test_parts_are_as_fine_as_the_pieces_of_either_side() -> None:
    b = Builder(TermPool())
    y = b.pool.leaf("y", (8, 3))
    found = b.concatenate([b.mul(b.narrow(y, 0, 0, 4), b.narrow(y, 0, 4, 4)), b.narrow(y, 0, 0, 4)], 0)
    pairs = _parts(_concatenated(b), found, 0)
    assert [left.shape[0] for left, _ in pairs] == [2, 2, 2, 2]
    values = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    evaluator = Evaluator({"y": values, **_evaluator().leaves})
    whole = torch.cat(PARTS).double(), torch.cat([values[:4] * values[4:], values[:4]]).double()
    for number, sides in enumerate(pairs):
        for side, expected in zip(sides, whole, strict=True):
            torch.testing.assert_close(evaluator.view(side), expected[2 * number : 2 * number + 2])
    whole_spec = _parts(b.pool.leaf("z", (8, 3)), found, 0)
    assert [left.shape[0] for left, _ in whole_spec] == [4, 4]


def test_parts_of_sizes_that_are_not_known() -> None:
    b, size = Builder(TermPool()), sympy.Symbol("s", positive=True, integer=True)
    pieces = [b.pool.leaf(name, (size, 3)) for name in "xyz"]
    found = b.concatenate(pieces, 0)
    for spec in (found, b.pool.leaf("w", (3 * size, 3))):
        pairs = _parts(spec, found, 0)
        assert [right for _, right in pairs] == pieces
        assert [left.shape[0] for left, _ in pairs] == [size] * 3
