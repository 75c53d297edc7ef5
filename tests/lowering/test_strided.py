"""``as_strided`` reads what lies in memory: after a transpose that is not what a contiguous tensor would hold."""

from __future__ import annotations

import pytest
import torch

from tests.ir.evaluate import Evaluator
from tests.lowering.graphs import GraphBuilder, blockers

aten = torch.ops.aten
X = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4)

READS = [
    ((2, 1, 0), [6, 4], [4, 1], None),
    ((2, 1, 0), [4, 3, 2], [1, 4, 12], 0),
    ((1, 0, 2), [2, 3, 5, 4], [12, 4, 0, 1], None),
    ((2, 0, 1), [3, 2], [2, 1], 6),
]


@pytest.mark.parametrize(("order", "size", "stride", "offset"), READS)
def test_of_a_permutation(order: tuple[int, ...], size: list[int], stride: list[int], offset: int | None) -> None:
    g = GraphBuilder()
    node = g.call(
        aten.as_strided.default, g.call(aten.permute.default, g.input("x", X), list(order)), size, stride, offset
    )
    lowering = g.lower(node)
    assert blockers(lowering) == []
    view = lowering.view(node)
    assert view is not None
    assert torch.equal(Evaluator({"x": X}).view(view), X.permute(order).as_strided(size, stride, offset))


def test_a_source_laid_into_a_permutation() -> None:
    g = GraphBuilder()
    x, source = g.input("x", X), g.input("source", Y := X.reshape(4, 6).sin())
    node = g.call(aten.as_strided_scatter.default, g.call(aten.permute.default, x, [2, 0, 1]), source, [4, 6], [6, 1])
    lowering = g.lower(node)
    view = lowering.view(node)
    assert view is not None
    expected = torch.as_strided_scatter(X.permute(2, 0, 1), Y, [4, 6], [6, 1])
    assert torch.equal(Evaluator({"x": X, "source": Y}).view(view), expected)


UNREPRESENTED = [
    ([4, 4], [1, 1], None, "extents [4, 4] at strides [1, 1]: elements overlap, or a block of them is cut"),
    ([2, 4], [20, 1], None, "extents [2, 4] at strides [20, 1]: elements overlap, or a block of them is cut"),
    ([2, 12], [12, 1], 12, "`as_strided` beyond the elements of its operand"),
]


@pytest.mark.parametrize(("size", "stride", "offset", "message"), UNREPRESENTED)
def test_windows_cut_blocks_and_other_memory(
    size: list[int], stride: list[int], offset: int | None, message: str
) -> None:
    g = GraphBuilder()
    x = g.input("x", torch.cat([X, X]))
    half = g.call(aten.slice.Tensor, x, 0, 0, 2)
    assert blockers(g.lower(g.call(aten.as_strided.default, half, size, stride, offset))) == [
        ("as_strided_default", "VC206", message)
    ]


def test_memory_before_the_operand() -> None:
    g = GraphBuilder()
    later = g.call(aten.slice.Tensor, g.input("x", X), 0, 1, 2)
    assert blockers(g.lower(g.call(aten.as_strided.default, later, [12], [1], 0))) == [
        ("as_strided_default", "VC206", "`as_strided` beyond the elements of its operand")
    ]


def test_an_operand_with_gaps() -> None:
    g = GraphBuilder()
    part = g.call(aten.slice.Tensor, g.input("x", X), 2, 0, 2)
    assert blockers(g.lower(g.call(aten.as_strided.default, part, [12], [1]))) == [
        ("as_strided_default", "VC206", "shape [2, 3, 2] at strides [12, 4, 1]: gaps or overlaps")
    ]


def test_a_part_written() -> None:
    g = GraphBuilder()
    node = g.call(aten.as_strided_scatter.default, g.input("x", X), g.input("source", X[0]), [3, 4], [4, 1])
    assert blockers(g.lower(node)) == [
        ("as_strided_scatter_default", "VC206", "`as_strided_scatter` into a part of its operand")
    ]
